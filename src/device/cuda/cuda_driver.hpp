// A table of the driver functions that gpumem calls, resolved at run time. So the library loads without a driver, and
// tests and the preload library can supply their own table.
//
// cuda_driver.def has one row per function. A table is immutable once it is returned, never freed, and usable from any
// thread.
#pragma once

#include <cuda.h>
#include <cudaTypedefs.h>

#include <type_traits>

#include "gpumem/cuda_device.hpp"
#include "gpumem/status.hpp"

namespace gpumem {

/// Declared here because it is new in CUDA 12.5, and gpumem compiles with the typedef headers of 12.4.
using driver_ctx_record_event = CUresult(CUDAAPI*)(CUcontext, CUevent);

/// Older drivers lack cuGetProcAddress_v2, cuCtxGetId and cuStreamGetId.
inline constexpr int oldest_driver_version = 12000;

template <typename Pointer>
struct driver_function;
template <typename... Arguments>
struct driver_function<CUresult(CUDAAPI*)(Arguments...)> {
  using pointer = CUresult(CUDAAPI*)(Arguments...);
  const char* name = nullptr;
  pointer call = nullptr;

  [[nodiscard]] explicit operator bool() const noexcept { return call != nullptr; }
  CUresult operator()(Arguments... arguments) const { return call(arguments...); }
};

struct cuda_driver {
#define DRIVER(member, name, version, type, since) driver_function<type> member;
#include "cuda_driver.def"
  int version = 0;  ///< from cuDriverGetVersion: 12040 is 12.4

  [[nodiscard]] bool same_as(const cuda_driver& rhs) const noexcept {
#define DRIVER(member, name, version, type, since) \
  if (member.call != rhs.member.call) return false;
#include "cuda_driver.def"
    return version == rhs.version;
  }
};

/// `12.4` from 12040.
std::string version_text(int version);

/// The status of a failed driver call: names the call, CUDA's error and a remedy. `doing` completes the sentence, as in
/// "of 2.00 GiB on device 0"; may be empty.
status driver_status(const cuda_driver& driver, const char* call, CUresult error, std::string_view doing = {});

/// Calls a function of the driver. On failure returns its status; then `doing()` completes the sentence.
template <typename... Parameters, typename Describe>
status checked(const cuda_driver& driver, const driver_function<CUresult(CUDAAPI*)(Parameters...)>& call,
               const Describe& doing, std::type_identity_t<Parameters>... arguments) {
  const CUresult done = call(arguments...);
  return done == CUDA_SUCCESS ? status{} : driver_status(driver, call.name, done, doing());
}

}  // namespace gpumem
