/// Everything a run reads, gathered before the first replay, so that bad input never leaves half a table.
#pragma once

#include <string>
#include <vector>

#include "gpumem/status.hpp"
#include "options.hpp"
#include "policy_row.hpp"
#include "trace.hpp"

namespace gpumem::bench {

struct inputs {
  std::vector<trace> traces;  ///< no two with the same name: those that share one are named by their path
  std::vector<policy_row> rows;
};

/// Loads every trace, reads every row, and opens an allocator for each row as the replays will.
result<inputs> gather_inputs(const options& from);

/// Where the bundled traces are: next to an installed program, else in the source tree.
std::string bundled_traces_folder();

}  // namespace gpumem::bench
