/// The double behind the shim, found by the path in GPUMEM_CUDA_DRIVER, for the program's own view of the device.
#pragma once

#include <cuda.h>
#include <dlfcn.h>

#include <array>
#include <cstdint>
#include <cstdlib>

#include "gpumem/device.hpp"

namespace gpumem::preload_test {

inline void* double_library() {
  const char* const named = std::getenv("GPUMEM_CUDA_DRIVER");
  return named != nullptr ? dlopen(named, RTLD_NOW | RTLD_LOCAL) : nullptr;
}

template <typename Function>
Function* of_double(const char* name) {
  return reinterpret_cast<Function*>(dlsym(double_library(), name));
}
/// The driver that the program itself finds: the shim.
template <typename Function>
Function* of_driver(const char* name) {
  return reinterpret_cast<Function*>(dlsym(dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL), name));
}

inline std::uint64_t calls_of(device_call kind) {
  std::array<std::uint64_t, device_call_kinds> counts{};
  of_double<void(std::uint64_t*, int)>("simcuda_device_calls")(counts.data(), static_cast<int>(counts.size()));
  return counts.at(static_cast<std::size_t>(kind));
}
inline std::uint64_t hazards() { return of_double<std::uint64_t()>("simcuda_hazards")(); }
inline std::uint64_t used_bytes() { return of_double<std::uint64_t()>("simcuda_used_bytes")(); }
/// Enqueues work of `lag_ns` on the stream that uses the bytes, reported to the referee.
inline void use(void* stream, std::uint64_t lag_ns, const void* at, std::uint64_t bytes) {
  of_double<void(void*, std::uint64_t, std::uint64_t, std::uint64_t)>("simcuda_use")(
      stream, lag_ns, static_cast<std::uint64_t>(reinterpret_cast<std::uintptr_t>(at)), bytes);
}
inline void handed_out(const void* at, std::uint64_t bytes, void* stream) {
  of_double<void(std::uint64_t, std::uint64_t, void*)>("simcuda_handed_out")(
      static_cast<std::uint64_t>(reinterpret_cast<std::uintptr_t>(at)), bytes, stream);
}
inline void given_back(const void* at) {
  of_double<void(std::uint64_t)>("simcuda_given_back")(
      static_cast<std::uint64_t>(reinterpret_cast<std::uintptr_t>(at)));
}

/// Whether the driver that this process finds is the shim.
inline bool preloaded() {
  return of_driver<void>("cuGetProcAddress_v2") != nullptr && of_driver<void>("simcuda_hazards") == nullptr;
}

}  // namespace gpumem::preload_test
