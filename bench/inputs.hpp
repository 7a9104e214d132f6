/// The input of a run, all read before the first replay, so that bad input never leaves half a table.
#pragma once

#include <string>
#include <vector>

#include "gpumem/status.hpp"
#include "options.hpp"
#include "own_plans.hpp"
#include "policy_row.hpp"
#include "trace.hpp"

namespace gpumem::bench {

struct inputs {
  std::vector<trace> traces;  ///< no two with the same name: those that share one are named by their path
  std::vector<policy_row> rows;
  /// What is replayed on each trace, in the order of `traces`: the rows, those of `planned` with the trace's own plan.
  std::vector<std::vector<policy_row>> rows_of;
  std::vector<own_plan> plans;  ///< of those
};

/// The time limit for each trace's own plan.
inline constexpr std::chrono::milliseconds own_plan_time{5000};

/// Loads every trace, reads every row, makes plans for rows that need one, and opens an allocator for each row as the
/// replays will.
result<inputs> gather_inputs(const options& from);

/// The folder of the bundled traces: beside an installed program, else in the source tree.
std::string bundled_traces_folder();

}  // namespace gpumem::bench
