// The traces of a program's processes. PyTorch's record is one file for each process; gpumem's is one file in all.
#pragma once

#include <string>
#include <vector>

#include "simulated_run.hpp"

namespace gpumem::cli {

/// How many processes took memory of a card.
std::size_t processes_with_memory(const simulated_outcome& outcome);

/// Moves PyTorch's trace of the process with the largest peak to `path`. Returns that process; null if there is none.
/// Warns of every process that took memory of a card and is not in the trace; `others_kept`: says where theirs are.
const simulated_process* take_trace(simulated_outcome& outcome, const std::string& path, bool others_kept,
                                    std::vector<std::string>& warnings);

/// Refuses what several processes have recorded into the one file of gpumem's own recording.
status check_one_recorded(const simulated_outcome& outcome);

/// Why PyTorch left no trace of any process; empty: no reason is known.
std::string why_no_trace(const simulated_outcome& outcome);

}  // namespace gpumem::cli
