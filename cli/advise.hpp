// `gpumem advise`: which policy and settings a recorded program fits in, best first, with the variables to set.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>

#include "gpumem/status.hpp"

namespace CLI {
class App;
}

namespace gpumem::bench {
class own_plan;
struct trace;
}  // namespace gpumem::bench

namespace gpumem::cli {

struct advise_options {
  std::string trace;
  std::string capacity;  ///< bytes (52GiB) that the program may take; empty: no limit
  bool json = false;
};

/// Adds the subcommand, whose words go into `into`.
CLI::App* add_advise_command(CLI::App& to, advise_options& into);

/// Exit status: 0; 3 where nothing fits; 1 where the trace is no such thing; 2 for bad words.
int advise(const advise_options& with);

/// `rows` become those of `advise --json`, best first: every policy and its settings on the trace within `capacity`
/// bytes (0: no limit). Silences the log: what a policy could not get is in the rows.
status advice_for(const bench::trace& t, std::uint64_t capacity, const bench::own_plan& plan,
                  nlohmann::ordered_json& rows);

}  // namespace gpumem::cli
