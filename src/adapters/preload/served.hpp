// What the files of served functions share.
#pragma once

#include <optional>

#include "device_registry.hpp"

namespace gpumem::preload {

/// A block that any stream may use at once. Where there is none, `answer` is what the program is told;
/// CUDA_ERROR_UNKNOWN: the driver shall say it.
result<CUdeviceptr> allocate_for_all(served_context& device, std::size_t bytes, CUresult* answer);

/// Whether the driver has an event on a whole context: CUDA 12.5.
bool has_context_events() noexcept;

/// What the program may still have of a device that is open; nothing where that cannot be told.
std::optional<std::uint64_t> free_for_program(const served_context& device, std::uint64_t free_on_device) noexcept;
/// The limit on the whole process before anything is open on the device; nothing where there is none, or it is a share
/// of what is free, which is known only later.
std::optional<std::uint64_t> limit_before_opening(int ordinal, std::uint64_t total_bytes) noexcept;

/// CU_POINTER_ATTRIBUTE_BUFFER_ID of a block: given out once asked for, never twice, and gone with the block.
std::uint64_t identity_of(CUdeviceptr begin);
void forget_identity(CUdeviceptr begin) noexcept;

}  // namespace gpumem::preload
