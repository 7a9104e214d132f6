// The real driver behind the shim: found by path, since its usual name leads back to this library, and opened by the
// first call that needs it.
//
// Any thread. What was opened stays open; that there is none is remembered, too.
#pragma once

#include <cuda.h>
#include <cudaTypedefs.h>

#include <string>
#include <vector>

namespace gpumem::preload {

/// Where the driver may be, best first: GPUMEM_CUDA_DRIVER alone where it is set, else LD_LIBRARY_PATH, what ldconfig
/// knows, and the usual folders. Files that do not exist are left out.
std::vector<std::string> driver_candidates();

/// A function of the real driver by its exported name; null where it has none, or there is no driver.
void* driver_symbol(const char* name) noexcept;

/// The driver's cuGetProcAddress_v2; null before CUDA 12.0.
PFN_cuGetProcAddress_v12000 driver_get_proc_address() noexcept;

/// What is answered in the place of a function that is not there: CUDA_ERROR_NO_DEVICE without a driver, so that a
/// program with a path for the CPU takes it, else CUDA_ERROR_NOT_SUPPORTED.
CUresult driver_missing() noexcept;

}  // namespace gpumem::preload
