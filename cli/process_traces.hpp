// The traces of a program's processes. PyTorch records one file for each process; gpumem records a single file.
#pragma once

#include <string>
#include <vector>

#include "simulated_run.hpp"

namespace gpumem::cli {

/// The number of processes that allocated memory on a card.
std::size_t processes_with_memory(const simulated_outcome& outcome);

/// Moves PyTorch's trace of the process with the largest peak to `path`. Returns that process, or null if none left a
/// trace. Warns of every other process that allocated memory on a card; with `others_kept` names their traces' files.
const simulated_process* take_trace(simulated_outcome& outcome, const std::string& path, bool others_kept,
                                    std::vector<std::string>& warnings);

/// Returns an error if several processes recorded into gpumem's single trace file.
status check_one_recorded(const simulated_outcome& outcome);

/// The reason that PyTorch left no trace of any process; empty if unknown.
std::string why_no_trace(const simulated_outcome& outcome);

}  // namespace gpumem::cli
