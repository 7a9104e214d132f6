/// Hashes of numbers.
#pragma once

#include <cstdint>

namespace gpumem {

/// The finalizer of splitmix64 (Steele, Lea, Flood: Fast splittable pseudorandom number generators, OOPSLA 2014).
[[nodiscard]] constexpr std::uint64_t mixed_bits(std::uint64_t value) noexcept {
  value = (value ^ (value >> 30U)) * 0xbf58476d1ce4e5b9U;
  value = (value ^ (value >> 27U)) * 0x94d049bb133111ebU;
  return value ^ (value >> 31U);
}

}  // namespace gpumem
