// How much of the program comes by: all of its driver calls behind the shim, or only the runtime calls that were
// relinked or recompiled. What is not seen is asked for at each call instead.
#pragma once

namespace gpumem::preload {

/// True in libgpumem_preload.so, false in libgpumem_runtime.so.
extern const bool is_preloaded;

}  // namespace gpumem::preload
