/// A claim and what is found of it. The files of this folder hold a few claims each, catalogue.cpp lists them all.
///
/// An experiment fills in raw figures, and its verdict follows from these alone: tests/unit/bench/claims_test.cpp
/// derives every verdict a second time, from the JSON.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "gpumem/status.hpp"
#include "measure.hpp"

namespace gpumem::bench {

using figures_json = nlohmann::ordered_json;

enum class verdict : std::uint8_t { holds, does_not_hold, depends };
std::string_view to_string(verdict v) noexcept;

struct findings {
  figures_json figures =
      figures_json::array();  ///< rows, each an object with the same keys; bytes unless named otherwise
  std::string measured;       ///< one or two sentences with the figures that decide
  verdict outcome = verdict::depends;
};

/// The bundled traces, loaded once for all claims.
struct claim_setup {
  replay_setup replay;  ///< with `cuda` only for an experiment that runs on the card
  std::vector<trace> bundled;
};

struct claim {
  std::string_view id;
  std::string_view statement;
  std::string_view source;
  std::string_view experiment;  ///< set-up, so that it can be judged
  std::string_view expected;
  result<findings> (*run)(const claim_setup& setup);
  std::string_view on_card{};  ///< what is different on the card that --device names; empty: it is simulated always
};

/// In the order in which they are told.
std::vector<claim> grab_all_claims();
std::vector<claim> growth_claims();
std::vector<claim> limit_claims();
std::vector<claim> device_claims();
std::vector<claim> day_claims();

// --- what several of them need -----------------------------------------------------------------------------------

/// A row without GPUMEM_* from outside.
result<policy_row> plain_row(std::string_view text);
/// The bundled traces and seeded workloads of 40,000 operations that stand beside them.
result<std::vector<trace>> all_workloads(const claim_setup& setup);
/// The smallest capacity, in steps of 1 % from 2.5 times the peak of live down, above which every one is enough; none
/// where the largest is not.
result<std::optional<std::uint64_t>> smallest_capacity(const trace& t, const policy_row& row,
                                                       const replay_setup& setup);
/// `holds` where all of `count` agree, `does_not_hold` where none does.
verdict verdict_of(std::size_t agreeing, std::size_t count) noexcept;

}  // namespace gpumem::bench
