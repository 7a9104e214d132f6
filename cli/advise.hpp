// `gpumem advise`: ranks the policies and settings that fit a recorded program, with the variables to set.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>

#include "cli_app.hpp"
#include "gpumem/status.hpp"

namespace gpumem::bench {
class own_plan;
struct trace;
}  // namespace gpumem::bench

namespace gpumem::cli {

struct advise_options {
  std::string trace;
  std::string capacity;  ///< memory available to the program (52GiB); empty: no limit
  bool json = false;
};

struct advice_scope {
  std::uint64_t recorded_ops = UINT64_MAX;  ///< operations from here on are steps that the program did not get to
  bool alike = true;                        ///< also what does the same as another row in a program that ran out
};

/// Adds the subcommand; its arguments go into `options`.
void add_advise_command(CLI::App& app, advise_options& options);

/// Exit status: 0; 3 if nothing fits; 1 if the file is not a trace; 2 for a usage error.
int advise(const advise_options& options);

/// Fills `advice` with the results of `advise --json`, best first: every policy and its settings on the trace within
/// `capacity` bytes (0: no limit). Without a plan, policies that follow one are left out. Silences the log, because the
/// rows contain the refusals.
status advice_for(const bench::trace& recorded, std::uint64_t capacity, const bench::own_plan* plan,
                  nlohmann::ordered_json& advice, const advice_scope& scope = {});

/// Whether runs of a program under this row's policy reserve different amounts, because pages move only where the
/// device's work is done: `expandable` without a slack.
bool varies_between_runs(const std::string& row);

}  // namespace gpumem::cli
