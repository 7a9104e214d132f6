/// GPUMEM_OOM_ADVICE: starts a tool that finds settings under which a failed request fits.
///
/// Any thread. The program does not wait for the tool.
#pragma once

#include <string>

namespace gpumem {

/// Starts `gpumem why` on the recording at the first call in this process. The tool writes to stderr, and runs without
/// GPUMEM_* and LD_PRELOAD. Logs one line if there is no recording or the tool cannot be started.
void start_oom_advice(const std::string& recording) noexcept;

}  // namespace gpumem
