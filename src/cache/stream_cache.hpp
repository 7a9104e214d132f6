// One thread's cache for one stream: bins of freed blocks by exact size.
//
// Sizes are exact: nothing is rounded up to serve from a cache. After Bonwick and Adams, "Magazines and Vmem", 2001:
// bins are magazines, and full ones go to the depot (depot.hpp). The access rules are those of its thread's cache
// (thread_cache.hpp).
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>
#include <span>

#include "block_ids.hpp"
#include "gpumem/device.hpp"
#include "gpumem/request.hpp"
#include "pointer_map.hpp"

namespace gpumem {

/// Bins by size: one for each multiple of 512 B up to 64 KiB; above that sizes share bins by hash, one size at a time.
struct bin_index {
  static constexpr std::uint32_t exact = 128;
  static constexpr std::uint32_t shared = 256;
  static constexpr std::uint32_t all = exact + shared;
  static constexpr std::uint64_t most_units = UINT32_MAX;
  /// Blocks of up to 4 KiB have no limit in bytes, because full bins of them are small.
  static constexpr std::uint64_t small_units = 8;

  /// Accepts any number of units. It hashes the low 32 bits only, which hold the size of every bin.
  [[nodiscard]] static constexpr std::uint32_t index_of(std::uint64_t units) noexcept {
    if (units - 1 < exact) [[likely]]
      return static_cast<std::uint32_t>(units - 1);
    return exact + (static_cast<std::uint32_t>(units) * 0x9e37'79b1U >> 24);
  }
  /// Whether a block counts against the limit.
  [[nodiscard]] static constexpr bool is_limited(std::uint64_t units) noexcept { return units > small_units; }
  /// The bytes that count against it.
  [[nodiscard]] static constexpr std::uint64_t limited_bytes(std::uint64_t units) noexcept {
    return is_limited(units) ? units * block_granularity : 0;
  }
};

/// A stream as caches know it: its owner number, the key by which threads find it, and its handle.
struct cached_stream {
  owner_id owner = idle_owner;
  std::uint64_t key = 0;
  stream_ref handle = {};
};

/// One thread's blocks of one stream.
class stream_cache {
 public:
  static constexpr std::uint8_t max_capacity = 62;
  static constexpr std::uint8_t alone = 1;    ///< capacity of a bin for a repeating pair, which no limit counts
  static constexpr std::uint32_t batch = 30;  ///< number of blocks that move between a bin and the depot

  /// Blocks of one size. The first of its cache lines has everything that a bin with few blocks needs.
  struct alignas(64) bin {
    std::uint32_t units = 0;  ///< in 512 B; 0: no size yet
    std::uint8_t count = 0;
    std::uint8_t capacity = 0;                  ///< how many it may hold now; 0: not in use
    std::array<slot_index, max_capacity> held;  ///< the slots of its blocks, the latest last

    /// Requires that it is in use and has room.
    void push(slot_index slot) noexcept { held[count++] = slot; }
    /// Takes a batch in so that its first block is popped first. Requires that it is in use, empty, and large enough.
    void fill_reversed(std::span<const slot_index> blocks) noexcept {
      std::reverse_copy(blocks.begin(), blocks.end(), held.begin());
      count = static_cast<std::uint8_t>(blocks.size());
    }
    /// Requires that it is not empty.
    [[nodiscard]] slot_index pop() noexcept { return held[--count]; }
    /// Removes its oldest blocks, which the caller has taken.
    void drop_oldest(std::uint32_t going) noexcept {
      std::copy(held.begin() + going, held.begin() + count, held.begin());
      count = static_cast<std::uint8_t>(count - going);
    }
  };
  static_assert(sizeof(bin) == 256);

  explicit stream_cache(const cached_stream& stream) : stream_{stream} {}

  [[nodiscard]] const cached_stream& stream() const noexcept { return stream_; }
  [[nodiscard]] owner_id owner() const noexcept { return stream_.owner; }
  /// Switches to the blocks of another stream. Requires that it is empty.
  void begin(const cached_stream& stream) noexcept { stream_ = stream; }
  /// The bin for that size. It may still hold blocks of another size, which must leave first.
  [[nodiscard]] bin& bin_of(std::uint64_t units) noexcept { return bins_[bin_index::index_of(units)]; }
  /// The bin of that size, or null. Accepts any number of units; for 0 it may return a bin without a size, which is
  /// empty and has no room.
  [[nodiscard]] bin* find(std::uint64_t units) noexcept {
    bin& b = bin_of(units);
    return b.units == units ? &b : nullptr;
  }
  /// Puts the bin to use: it may hold `capacity` blocks of that size. Requires that it is empty.
  void open(bin& opened, std::uint32_t units, std::uint8_t capacity = max_capacity) noexcept {
    opened.units = units;
    opened.capacity = capacity;
    const auto place = static_cast<std::size_t>(&opened - bins_.data());
    in_use_[place / 64] |= std::uint64_t{1} << (place % 64);
  }
  /// Calls `each(bin)` for every bin in use, which may close it.
  template <typename Each>
  void for_each_in_use(Each each) {
    for (std::size_t word = 0; word < in_use_.size(); ++word) {
      for (std::uint64_t left = in_use_[word]; left != 0; left &= left - 1) {
        each(bins_[word * 64 + static_cast<std::size_t>(std::countr_zero(left))]);
      }
    }
  }
  /// Requires that it is empty.
  void close(bin& closed) noexcept {
    closed.capacity = 0;
    const auto place = static_cast<std::size_t>(&closed - bins_.data());
    in_use_[place / 64] &= ~(std::uint64_t{1} << (place % 64));
  }

 private:
  std::array<bin, bin_index::all> bins_;  // first, so that a bin's address follows from its index alone
  cached_stream stream_;
  std::array<std::uint64_t, bin_index::all / 64> in_use_{};  // one bit per bin
};

}  // namespace gpumem
