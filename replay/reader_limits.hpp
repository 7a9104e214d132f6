/// Limits on the memory that readers of traces use, so that an untrusted file cannot exhaust the machine.
#pragma once

#include <cstddef>
#include <cstdint>
#include <random>
#include <string>
#include <unordered_map>
#include <utility>

#include "gpumem/status.hpp"

namespace gpumem::bench {

/// A recording with a larger block, more live bytes or more streams is refused: no card has so much memory.
constexpr std::uint64_t largest_block = std::uint64_t{1} << 48;
constexpr std::uint64_t largest_live = std::uint64_t{1} << 56;
constexpr std::size_t most_streams = 65536;

/// The status of a file that does not say what its format requires.
inline status damaged(std::string reason) { return {errc::corrupt, std::move(reason)}; }

/// Compressed data may always expand to this size; beyond it, to `most_expansion` times its own size.
constexpr std::uint64_t free_expansion_bytes = std::uint64_t{64} << 20;
constexpr std::uint64_t most_expansion = 100;

[[nodiscard]] constexpr bool expands_too_far(std::uint64_t compressed_bytes, std::uint64_t bytes) noexcept {
  return bytes > free_expansion_bytes && bytes / most_expansion > compressed_bytes;
}

/// The host memory that a reader may take for so many uncompressed bytes.
[[nodiscard]] constexpr std::uint64_t most_reader_bytes(std::uint64_t bytes) noexcept {
  return (std::uint64_t{256} << 20) + 8 * bytes;
}

/// A hash whose collisions the maker of a file cannot choose.
struct seeded_hash {
  std::size_t operator()(std::uint64_t key) const noexcept {
    static const std::uint64_t seed = std::random_device{}() | std::uint64_t{std::random_device{}()} << 32;
    key ^= seed;  // then the finalizer of splitmix64
    key = (key ^ key >> 30) * 0xbf58476d1ce4e5b9;
    key = (key ^ key >> 27) * 0x94d049bb133111eb;
    return key ^ key >> 31;
  }
};

template <typename Value>
using map_of_numbers = std::unordered_map<std::uint64_t, Value, seeded_hash>;

}  // namespace gpumem::bench
