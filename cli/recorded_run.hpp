// One run of a program on a simulated card with ample memory, and the trace of its allocations.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "gpumem/status.hpp"
#include "trace.hpp"
#include "values_text.hpp"

namespace gpumem::cli {

/// What `predict` and `fit` run.
struct recorded_run_options {
  std::string card = "h100";  ///< the card the program sees, with ample memory
  std::string context = "450MiB";
  std::string cudnn_workspace = "0";
  std::string settle = "10m";
  int values = default_values;
  std::string trace;  ///< keeps the run's allocations; empty: they are removed
  std::vector<std::string> command;
};

/// The results of the run: its trace, and the memory that the framework's own allocator took.
struct recording {
  bench::trace trace;
  bool by_torch = false;  ///< PyTorch's record; otherwise gpumem's, of a run that it served
  std::uint64_t native_reserved_bytes = 0;
  std::uint64_t outside_bytes = 0;  ///< taken past the allocator whose allocations are in the trace
  std::uint64_t host_values_read = 0;
  std::string untrue_values;     ///< says so, with the lines; empty: none were read
  std::size_t processes = 0;     ///< that took memory of the card; the trace is of one
  std::uint64_t host_bytes = 0;  ///< of the host's memory, at the run's peak; 0: not known
  std::vector<std::string> warnings;
};

/// Checks the options. `bad_setting` for the user's; the bytes of a context otherwise.
result<std::uint64_t> check_recorded_run(const recorded_run_options& options);

/// Runs the program. An `exit_status` other than 0 is the program's own and ends the prediction.
result<recording> record_run(const recorded_run_options& options, std::uint64_t context_bytes, int& exit_status);

}  // namespace gpumem::cli
