/// Runs a program to its end: text in, text out, killed after its time limit.
///
/// Any thread. The child inherits only its three standard descriptors, and no environment variables of an MPI launcher
/// or of gpumem, because a unit is not a rank, and its settings come from the manifest alone.
#pragma once

#include <chrono>
#include <string>
#include <vector>

#include "gpumem/status.hpp"

namespace gpumem::bench::sweep {

struct child_outcome {
  std::string output;
  std::string err;  ///< the last 2000 bytes
  bool timed_out = false;
  int signal = 0;  ///< the signal that killed it; 0: none
  int exit_status = 0;
  double processor_s = 0;
  std::uint64_t peak_resident_bytes = 0;
};

/// `device_error` if no process can be started.
result<child_outcome> run_child(const std::string& program, const std::vector<std::string>& arguments,
                                const std::string& input, std::chrono::milliseconds time_limit);

/// Whether a variable (`NAME=value`) is removed from a unit's environment.
bool is_left_out(std::string_view entry) noexcept;

}  // namespace gpumem::bench::sweep
