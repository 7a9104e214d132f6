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

/// The run that `predict` and `fit` make.
struct recorded_run_options {
  std::string card = "h100";  ///< the card the program sees, with ample memory
  std::string context = "450MiB";
  std::string cudnn_workspace = "0";
  std::string settle = "10m";
  int values = default_values;
  std::string trace;  ///< path that keeps the trace; empty: it is removed
  std::vector<std::string> command;
};

/// A card of that name, or only so much memory (`24GiB`).
struct capacity {
  std::string name;
  std::uint64_t bytes = 0;
};

/// The results of the run: its trace, and the memory that the framework's own allocator reserved.
struct recording {
  bench::trace trace;
  bool by_torch = false;      ///< PyTorch recorded the trace; otherwise gpumem, which served the run
  bool may_be_served = true;  ///< the run ended by itself, and PyTorch finds gpumem's Python package
  std::uint64_t native_reserved_bytes = 0;
  std::uint64_t outside_bytes = 0;  ///< memory taken outside the traced allocator
  std::uint64_t host_values_read = 0;
  std::string untrue_values;     ///< the warning about untrue values that the host read; empty: it read none
  std::size_t processes = 0;     ///< processes that allocated memory on the card; the trace covers one of them
  std::uint64_t host_bytes = 0;  ///< the run's peak of host memory; 0: unknown
  std::vector<std::string> warnings;
};

/// A run of the program under gpumem.
struct measured_peak {
  std::uint64_t peak_bytes = 0;  ///< of all memory on the card, without contexts
  bool ran_out = false;          ///< a request was refused: the card does not hold the program
};

/// Checks the options. Returns the bytes of a context, or `bad_setting`.
result<std::uint64_t> check_recorded_run(const recorded_run_options& options);

/// Runs the program. Sets `exit_status` to the program's own status; if it is not 0, the caller ends the prediction.
result<recording> record_run(const recorded_run_options& options, std::uint64_t context_bytes, int& exit_status);

/// Runs the recorded program again on that card, where gpumem serves it with these variables (`GPUMEM_POLICY=expandable
/// GPUMEM_LIMIT=8GiB`). Memory without a card's name is that of a card that is else as in `options`. Returns the peak
/// of all memory on the card without its contexts. `unsupported` if gpumem did not serve the program, if it failed, or
/// if it held less than the recorded run. Sets `exit_status` to the program's own; a signal's status ends the
/// prediction.
result<measured_peak> measure_served(const recorded_run_options& options, std::uint64_t context_bytes,
                                     const capacity& card, const recording& recorded, const std::string& variables,
                                     int& exit_status);

}  // namespace gpumem::cli
