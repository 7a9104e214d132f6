/// A program run to its end: text in, text out, killed when its time is up.
///
/// Any thread. The child inherits no descriptor but its three, and of the environment what is neither the launcher's of
/// an MPI job nor gpumem's: a unit must not take itself for a rank, and its settings come from the manifest alone.
#pragma once

#include <chrono>
#include <string>
#include <vector>

#include "gpumem/status.hpp"

namespace gpumem::bench::sweep {

struct child_outcome {
  std::string out;
  std::string err;  ///< the last 2000 bytes
  bool timed_out = false;
  int signal = 0;  ///< that ended it; 0: none
  int exit_status = 0;
  double processor_s = 0;
  std::uint64_t peak_resident_bytes = 0;
};

/// `device_error` where no process can be started.
result<child_outcome> run_child(const std::string& program, const std::vector<std::string>& words,
                                const std::string& input, std::chrono::milliseconds time_limit);

/// Whether a variable (`NAME=value`) is kept from a unit's process.
bool is_left_out(std::string_view entry) noexcept;

}  // namespace gpumem::bench::sweep
