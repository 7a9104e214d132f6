// Symbols of the CUDA driver's library that are not the driver's functions.
#pragma once

namespace gpumem {

/// Returns a symbol of the library that load_cuda_driver() loaded, or of one that the program loaded before it with
/// global symbols. Null if there is none, and before a driver is loaded. Any thread.
void* loaded_driver_symbol(const char* name) noexcept;

}  // namespace gpumem
