// The base of the simulated runtime: the driver below it, the thread's device and its last error.
//
// The first call that needs the driver finds it: dlopen("libcuda.so.1"), then dlsym("cuGetProcAddress_v2"), which
// provides every other function by name, version and flags. So an interposed library sees the same calls as from the
// real runtime. Nothing here is ever destroyed, because programs call the runtime while they exit.
#pragma once

#include <cuda.h>
#include <cudaTypedefs.h>
#include <cuda_runtime_api.h>

#include <atomic>
#include <cstdint>
#include <utility>

namespace gpumem::simcudart {

struct driver_table {
#define DRIVER(function, version, type) type function = nullptr;
#include "driver.def"
};

struct found_driver {
  cudaError_t state = cudaSuccess;
  driver_table tables[2];  ///< legacy, per thread
};
extern std::atomic<const found_driver*> found_already;
const found_driver& find_driver();
inline const found_driver& the_driver() {
  const found_driver* const found = found_already.load(std::memory_order_acquire);
  return found != nullptr ? *found : find_driver();
}

/// Returns the driver's functions, for legacy or per-thread default streams. Requires that `initialise` succeeded.
inline const driver_table& driver(bool per_thread = false) { return the_driver().tables[per_thread ? 1 : 0]; }
/// Finds and initialises the driver once.
inline cudaError_t initialise() { return the_driver().state; }
/// Calls `initialise` and makes a context current: the program's own, else that of the thread's device.
cudaError_t enter();
/// Returns the primary context of a device, retained and never released.
cudaError_t context_of(int device, CUcontext* context);
/// Call when the device's context was destroyed; the next call creates another.
void forget_contexts(int device);

inline cudaError_t error_of(CUresult error) { return static_cast<cudaError_t>(error); }
/// Sets the next result of cudaGetLastError, unless `error` is success. Returns `error`.
cudaError_t remember(cudaError_t error);
cudaError_t last_error(bool clear);
/// The device that this thread chose with cudaSetDevice.
int& chosen_device();

/// A runtime call with a context: `body` returns the driver's result.
template <typename Body>
cudaError_t call(Body&& body) {
  cudaError_t e = enter();
  if (e == cudaSuccess) e = error_of(std::forward<Body>(body)());
  return remember(e);
}

/// A runtime call without a context.
template <typename Body>
cudaError_t call_without_context(Body&& body) {
  cudaError_t e = initialise();
  if (e == cudaSuccess) e = error_of(std::forward<Body>(body)());
  return remember(e);
}

inline CUdeviceptr address_of(const void* ptr) {
  return static_cast<CUdeviceptr>(reinterpret_cast<std::uintptr_t>(ptr));
}

/// Stores the result of a driver call: `done` is its error and `address` its output.
inline CUresult address_into(void** ptr, CUresult done, const CUdeviceptr& address) {
  if (ptr != nullptr)
    *ptr = done == CUDA_SUCCESS ? reinterpret_cast<void*>(static_cast<std::uintptr_t>(address)) : nullptr;
  return done;
}

}  // namespace gpumem::simcudart

/// Defines a runtime function twice: the plain one, and the variant for programs compiled with --default-stream
/// per-thread. The body uses `table`, the driver's functions for the respective default stream.
#define ON_STREAM(name, suffix, parameters, ...)                                       \
  extern "C" cudaError_t CUDARTAPI name parameters {                                   \
    return gpumem::simcudart::call([&]() -> CUresult {                                 \
      const gpumem::simcudart::driver_table& table = gpumem::simcudart::driver(false); \
      __VA_ARGS__                                                                      \
    });                                                                                \
  }                                                                                    \
  extern "C" cudaError_t CUDARTAPI name##suffix parameters {                           \
    return gpumem::simcudart::call([&]() -> CUresult {                                 \
      const gpumem::simcudart::driver_table& table = gpumem::simcudart::driver(true);  \
      __VA_ARGS__                                                                      \
    });                                                                                \
  }
/// Defines a runtime function that returns the result of a driver's function.
#define FORWARD(name, parameters, driver_call)                                               \
  cudaError_t CUDARTAPI name parameters {                                                    \
    return gpumem::simcudart::call([&] { return gpumem::simcudart::driver().driver_call; }); \
  }
/// The same for a function that needs no context.
#define FORWARD_WITHOUT_CONTEXT(name, parameters, driver_call)                                               \
  cudaError_t CUDARTAPI name parameters {                                                                    \
    return gpumem::simcudart::call_without_context([&] { return gpumem::simcudart::driver().driver_call; }); \
  }
