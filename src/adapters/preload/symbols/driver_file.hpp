// The real driver behind the shim: found by path, because its usual name leads back to this library, and opened by the
// first call that needs it.
//
// Any thread. The driver stays open; a failed search is not repeated.
#pragma once

#include <cuda.h>
#include <cudaTypedefs.h>

#include <string>
#include <vector>

namespace gpumem::preload {

/// Returns the existing files that may be the driver, best first: GPUMEM_CUDA_DRIVER alone if it is set, else those in
/// LD_LIBRARY_PATH, ldconfig's cache and the usual folders.
std::vector<std::string> driver_candidates();

/// Returns a function of the real driver by its exported name; null if the driver is missing or lacks it.
void* driver_symbol(const char* name) noexcept;

/// Returns the driver's cuGetProcAddress_v2; null before CUDA 12.0.
PFN_cuGetProcAddress_v12000 driver_get_proc_address() noexcept;

/// The result of a function that the driver lacks: CUDA_ERROR_NOT_SUPPORTED, or CUDA_ERROR_NO_DEVICE without a driver,
/// so that a program can fall back to the CPU.
CUresult driver_missing() noexcept;

}  // namespace gpumem::preload
