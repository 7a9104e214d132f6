/// Arithmetic on sizes: rounding, powers of two, and the units, all powers of 1024.
#pragma once

#include <bit>
#include <cstdint>
#include <optional>

namespace gpumem {

inline constexpr std::uint64_t kib = std::uint64_t{1} << 10;
inline constexpr std::uint64_t mib = std::uint64_t{1} << 20;
inline constexpr std::uint64_t gib = std::uint64_t{1} << 30;
inline constexpr std::uint64_t tib = std::uint64_t{1} << 40;

/// False for zero.
[[nodiscard]] constexpr bool is_power_of_two(std::uint64_t value) noexcept {
  return value != 0 && (value & (value - 1)) == 0;  // std::has_single_bit is a call on processors without popcount
}

/// The largest multiple of `multiple` (not 0) that is at most `value`.
[[nodiscard]] constexpr std::uint64_t round_down(std::uint64_t value, std::uint64_t multiple) noexcept {
  return value - value % multiple;
}

/// The smallest multiple of `multiple` (not 0) that is at least `value`; empty on overflow of 64 bits.
[[nodiscard]] constexpr std::optional<std::uint64_t> checked_round_up(std::uint64_t value,
                                                                      std::uint64_t multiple) noexcept {
  const std::uint64_t lower = round_down(value, multiple);
  if (lower == value) return value;
  if (lower > UINT64_MAX - multiple) return std::nullopt;
  return lower + multiple;
}

/// As `checked_round_up`, for results that are known to fit into 64 bits.
[[nodiscard]] constexpr std::uint64_t round_up(std::uint64_t value, std::uint64_t multiple) noexcept {
  const std::uint64_t lower = round_down(value, multiple);
  return lower == value ? value : lower + multiple;
}

}  // namespace gpumem
