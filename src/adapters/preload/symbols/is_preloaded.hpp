// Whether gpumem intercepts all of the program's driver calls (preloaded), or only the runtime calls that were relinked
// or recompiled. In the second case gpumem queries the rest at each call.
#pragma once

namespace gpumem::preload {

/// True in libgpumem_preload.so, false in libgpumem_runtime.so.
extern const bool is_preloaded;

}  // namespace gpumem::preload
