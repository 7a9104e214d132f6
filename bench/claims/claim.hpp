/// A claim and its findings. The files of this folder define a few claims each; catalogue.cpp lists them all.
///
/// An experiment fills in raw figures, and its verdict depends on these alone: tests/unit/bench/claims_test.cpp derives
/// every verdict again, from the JSON.
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
std::string_view to_string(verdict outcome) noexcept;

struct findings {
  figures_json figures =
      figures_json::array();  ///< rows, each an object with the same keys; bytes unless named otherwise
  std::string measured;       ///< one or two sentences with the decisive figures
  verdict outcome = verdict::depends;
};

/// The bundled traces, loaded once for all claims.
struct claim_setup {
  replay_setup replay;  ///< `cuda` is set only for an experiment that runs on the card
  std::vector<trace> bundled;
};

struct claim {
  std::string_view id;
  std::string_view statement;
  std::string_view source;
  std::string_view experiment;  ///< the set-up, in enough detail to judge it
  std::string_view expected;
  findings (*run)(const claim_setup& setup);
  std::string_view on_card{};  ///< how the set-up differs on the card of --device; empty: runs only simulated
};

/// In the order of the table.
std::vector<claim> grab_all_claims();
std::vector<claim> growth_claims();
std::vector<claim> limit_claims();
std::vector<claim> device_claims();
std::vector<claim> day_claims();

// --- shared by the experiments -----------------------------------------------------------------------------------

/// Ends an experiment whose set-up or allocator fails; `run_claims` reports it.
struct experiment_failed {
  status why;
};
/// Throws `experiment_failed` if the step has failed; else returns its value.
inline void need(const status& step) {
  if (!step) throw experiment_failed{step};
}
template <typename Value>
Value need(result<Value> step) {
  if (!step) throw experiment_failed{step.why()};
  return *std::move(step);
}

/// A row that ignores GPUMEM_* of the environment.
policy_row plain_row(std::string_view text);
/// The bundled traces, and seeded workloads of 40,000 operations.
std::vector<trace> all_workloads(const claim_setup& setup);
/// Tries capacities down from 2.5 times peak live in steps of 1 %. Returns the last one before the first failure. Empty
/// if the largest does not suffice.
std::optional<std::uint64_t> smallest_capacity(const trace& recorded, const policy_row& row, const replay_setup& setup);
/// `holds` if all of `count` agree, `does_not_hold` if none does, else `depends`.
verdict verdict_of(std::size_t agreeing, std::size_t count) noexcept;

}  // namespace gpumem::bench
