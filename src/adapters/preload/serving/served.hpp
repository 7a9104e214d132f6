// Declarations shared by the files of served functions.
#pragma once

#include <optional>

#include "device_registry.hpp"

namespace gpumem::preload {

/// Allocates a block that any stream may use at once. On failure `answer` is the program's result; CUDA_ERROR_UNKNOWN
/// means that the call must go to the driver.
result<CUdeviceptr> allocate_for_all(served_context& device, std::size_t bytes, CUresult* answer);

/// Whether the driver can record an event on a whole context, as since CUDA 12.5.
bool has_context_events() noexcept;

/// Returns how much memory the program may still allocate on an open device, if known.
std::optional<std::uint64_t> free_for_program(const served_context& device, std::uint64_t free_on_device) noexcept;
/// Returns the limit on the whole process before the device is open. None if there is no limit, or if it is a share of
/// free memory, which is known only at opening.
std::optional<std::uint64_t> limit_before_opening(int ordinal, std::uint64_t total_bytes) noexcept;

/// Returns CU_POINTER_ATTRIBUTE_BUFFER_ID of a block: assigned at the first query, never reused, and dropped with the
/// block.
std::uint64_t identity_of(CUdeviceptr begin);
void forget_identity(CUdeviceptr begin) noexcept;

}  // namespace gpumem::preload

/// Defines a function and its variant for --default-stream per-thread. In the body, `Streams` says which stream a null
/// handle names.
#define FOR_BOTH_NULL_STREAMS(function, parameters, ...)     \
  CUresult CUDAAPI function parameters {                     \
    constexpr null_stream Streams = null_stream::legacy;     \
    return __VA_ARGS__;                                      \
  }                                                          \
  CUresult CUDAAPI function##_ptsz parameters {              \
    constexpr null_stream Streams = null_stream::per_thread; \
    return __VA_ARGS__;                                      \
  }
