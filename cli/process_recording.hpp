// The file to which a living process records its allocations (GPUMEM_TRACE).
#pragma once

#include <string>

#include "gpumem/status.hpp"

namespace gpumem::cli {

struct process_recording {
  std::string path;  ///< to open it by; valid while the process has it open
  std::string name;  ///< as the process sees it
};

/// Finds the recording among the files that the process has open for writing. `invalid_argument` says what to do where
/// there is no such process, it is another user's, or it has no recording or several.
result<process_recording> recording_of_process(unsigned pid);

}  // namespace gpumem::cli
