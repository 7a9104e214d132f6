/// GPUMEM_OOM_ADVICE: starts the tool that finds settings which serve a request that ran out of memory.
///
/// Any thread. The program neither waits for the tool nor asks it anything.
#pragma once

#include <string>

namespace gpumem {

/// Starts `gpumem why` on the recording, the first time that this process calls it. The tool writes to stderr, gets
/// no GPUMEM_* and preloads nothing. Without a recording, or where the tool cannot be started, logs one line.
void start_oom_advice(const std::string& recording) noexcept;

}  // namespace gpumem
