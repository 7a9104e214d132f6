/// Converts between a program's pointers and the pools' addresses.
#pragma once

#include <cstdint>

#include "gpumem/device.hpp"

namespace gpumem {

inline address to_address(const void* pointer) noexcept {
  return static_cast<address>(reinterpret_cast<std::uintptr_t>(pointer));
}
inline void* to_pointer(address value) noexcept { return reinterpret_cast<void*>(static_cast<std::uintptr_t>(value)); }

}  // namespace gpumem
