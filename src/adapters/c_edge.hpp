// The boundary to C, shared by every function of gpumem.h: checks arguments, turns a status into a code, keeps its
// message for the thread, and lets no exception out.
#pragma once

#include <algorithm>
#include <cstring>
#include <exception>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "gpumem/allocator.hpp"
#include "gpumem/gpumem.h"

struct gpumem_allocator {
  std::vector<std::unique_ptr<gpumem::device>> devices;  // used by `owned`, which is destroyed first
  std::unique_ptr<gpumem::allocator> owned;              // null if the handle uses the process's allocator
  gpumem::allocator* allocator = nullptr;
};

namespace gpumem::c_edge {

inline thread_local std::string last_message;

constexpr gpumem_code to_code(errc code) noexcept { return static_cast<gpumem_code>(code); }
static_assert(static_cast<int>(errc::ok) == GPUMEM_OK);
static_assert(static_cast<int>(errc::invalid_argument) == GPUMEM_INVALID_ARGUMENT);
static_assert(static_cast<int>(errc::bad_setting) == GPUMEM_BAD_SETTING);
static_assert(static_cast<int>(errc::out_of_memory) == GPUMEM_OUT_OF_MEMORY);
static_assert(static_cast<int>(errc::unknown_pointer) == GPUMEM_UNKNOWN_POINTER);
static_assert(static_cast<int>(errc::double_free) == GPUMEM_DOUBLE_FREE);
static_assert(static_cast<int>(errc::wrong_size) == GPUMEM_WRONG_SIZE);
static_assert(static_cast<int>(errc::wrong_device) == GPUMEM_WRONG_DEVICE);
static_assert(static_cast<int>(errc::unsupported) == GPUMEM_UNSUPPORTED);
static_assert(static_cast<int>(errc::device_error) == GPUMEM_DEVICE_ERROR);
static_assert(static_cast<int>(errc::corrupt) == GPUMEM_CORRUPT);
static_assert(static_cast<int>(errc::policy_failed) == GPUMEM_POLICY_FAILED);
static_assert(static_cast<int>(errc::host_failure) == GPUMEM_HOST_FAILURE);

/// Runs `call`, which returns a status, and converts its result and exceptions to a code.
template <typename Call>
gpumem_code guarded(const Call& call) noexcept {
  try {
    const status done = call();
    if (!done) last_message = done.message();
    return to_code(done.code());
  } catch (const std::exception& failed) {
    try {
      last_message = failed.what();
    } catch (...) {
      last_message.clear();
    }
  } catch (...) {
    last_message.clear();
  }
  return GPUMEM_HOST_FAILURE;
}

inline status null_argument(std::string_view name) {
  return {errc::invalid_argument, std::string{name} + " is null; expected a pointer"};
}

/// Runs `call` with the handle's allocator.
template <typename Call>
gpumem_code with_allocator(gpumem_allocator* memory, const Call& call) noexcept {
  return guarded([&]() -> status {
    if (memory == nullptr) return null_argument("the allocator");
    return call(*memory->allocator);
  });
}

inline status no_such_device(const allocator& allocator, int device) {
  return {errc::wrong_device, "device " + std::to_string(device) + " does not exist; expected 0 to " +
                                  std::to_string(allocator.devices().size() - 1)};
}

inline bool exists(const allocator& allocator, int device) {
  return device >= 0 && static_cast<std::size_t>(device) < allocator.devices().size();
}

/// Copies the fields of `value` that the caller's version of the struct has, and zeroes fields that only the caller's
/// has.
template <typename Struct>
status hand_over(Struct value, Struct* target) {
  const std::size_t theirs = target->struct_bytes;
  if (theirs < sizeof(std::size_t)) {
    return {errc::invalid_argument, "struct_bytes is " + std::to_string(theirs) +
                                        ": expected the size of the struct, " + std::to_string(sizeof(Struct)) +
                                        " in this version"};
  }
  value.struct_bytes = theirs;
  std::memcpy(static_cast<void*>(target), &value, std::min(theirs, sizeof value));
  if (theirs > sizeof value) std::memset(reinterpret_cast<char*>(target) + sizeof value, 0, theirs - sizeof value);
  return {};
}

}  // namespace gpumem::c_edge
