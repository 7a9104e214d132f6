/// The input of a run. All of it is read before the first replay, so that bad input never leaves half a table.
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
  std::vector<trace> traces;  ///< names are unique: traces with equal names are named by their paths
  std::vector<policy_row> rows;
  /// Rows by trace, in the order of `traces`; rows of `planned` carry the trace's own plan.
  std::vector<std::vector<policy_row>> rows_of;
  std::vector<own_plan> plans;  ///< the plans that these rows refer to
};

/// The time limit for each trace's own plan.
inline constexpr std::chrono::milliseconds own_plan_time{5000};

/// Loads every trace, reads every row, makes the plans, and opens an allocator for each row as the replays will.
result<inputs> gather_inputs(const options& options);

/// The folder of the bundled traces: installed with the program, else in the source tree.
std::string bundled_traces_folder();

}  // namespace gpumem::bench
