// The file to which a running process records its allocations (GPUMEM_TRACE).
#pragma once

#include <string>

#include "gpumem/status.hpp"

namespace gpumem::cli {

struct process_recording {
  std::string path;  ///< opens the file; valid while the process has it open
  std::string name;  ///< the file's name as the process sees it
};

/// Finds the recording among the files that the process has open for writing. `invalid_argument` says what to do: if
/// the process does not exist, belongs to another user, or has no recording or several.
result<process_recording> recording_of_process(unsigned pid);

}  // namespace gpumem::cli
