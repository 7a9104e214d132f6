// What one thread keeps of one stream: bins of freed blocks by exact size.
//
// Sizes are exact: nothing is rounded up to serve from a cache. After Bonwick and Adams, "Magazines and Vmem", 2001:
// bins are magazines, and full ones go to the depot (depot.hpp). Who may touch it: whoever may touch its thread's cache
// (thread_cache.hpp).
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>
#include <span>

#include "block_ids.hpp"
#include "gpumem/request.hpp"
#include "pointer_map.hpp"

namespace gpumem {

/// Bins by size: one for each multiple of 512 B up to 64 KiB; above that sizes share bins by hash, one size at a time,
/// with a choice of two.
struct bin_places {
  static constexpr std::uint32_t exact = 128;
  static constexpr std::uint32_t shared = 256;
  static constexpr std::uint32_t all = exact + shared;
  static constexpr std::uint64_t most_units = UINT32_MAX;
  /// Blocks of up to 4 KiB, of which full bins are little, are held without a limit in bytes.
  static constexpr std::uint64_t small_units = 8;
  static constexpr std::uint32_t small_bins = small_units;  ///< the first ones

  [[nodiscard]] static constexpr std::uint32_t of(std::uint32_t units) noexcept {
    if (units <= exact) [[likely]]
      return units - 1;
    return of_shared(units);
  }
  [[nodiscard]] static constexpr std::uint32_t of_bytes(std::uint64_t bytes) noexcept {
    return of(static_cast<std::uint32_t>(bytes / block_granularity));
  }
  [[nodiscard]] static constexpr std::uint32_t of_shared(std::uint32_t units) noexcept {
    return exact + (units * 0x9e37'79b1U >> 24);
  }
  /// The other choice, for a size that shares.
  [[nodiscard]] static constexpr std::uint32_t second_choice(std::uint32_t place) noexcept { return place ^ 1U; }
  /// Whether a block counts against the limit.
  [[nodiscard]] static constexpr bool is_limited(std::uint64_t units) noexcept { return units > small_units; }
  /// And for how much.
  [[nodiscard]] static constexpr std::uint64_t limited_bytes(std::uint64_t units) noexcept {
    return is_limited(units) ? units * block_granularity : 0;
  }
};

/// A thread's blocks of one stream.
class stream_cache {
 public:
  static constexpr std::uint8_t room = 62;
  static constexpr std::uint8_t alone = 1;    ///< the room of a bin for a pair that repeats, which no limit counts
  static constexpr std::uint32_t batch = 30;  ///< blocks that change their place at once

  /// Blocks of one size. The first of its lines of memory has all that a bin needs that holds little.
  struct alignas(64) bin {
    std::uint32_t units = 0;  ///< of 512 B; 0: of no size yet
    std::uint8_t count = 0;
    std::uint8_t most = 0;              ///< how many it may hold now
    std::uint8_t unused = 0;            ///< the fewest that it held since it was looked at last
    std::array<slot_index, room> held;  ///< the slots of its blocks, the latest last

    /// Requires that it is in use and has room.
    void push(slot_index i) noexcept {
      held[count] = i;
      ++count;
    }
    /// Takes a batch in so that its first block is popped first. Requires that it is in use, empty, and has room.
    void fill_reversed(std::span<const slot_index> blocks) noexcept {
      std::reverse_copy(blocks.begin(), blocks.end(), held.begin());
      count = static_cast<std::uint8_t>(blocks.size());
    }
    /// Requires that it holds one.
    [[nodiscard]] slot_index pop() noexcept {
      --count;
      unused = std::min(unused, count);
      return held[count];
    }
    /// Without its oldest blocks, which the caller has taken.
    void drop_oldest(std::uint32_t going) noexcept {
      std::copy(held.begin() + going, held.begin() + count, held.begin());
      count = static_cast<std::uint8_t>(count - going);
      unused = static_cast<std::uint8_t>(unused - std::min<std::uint32_t>(unused, going));
    }
  };
  static_assert(sizeof(bin) == 256);

  static constexpr std::uint32_t no_bin = bin_places::all;

  stream_cache(owner_id owner, std::uint64_t key) : owner_{owner}, key_{key} {}

  [[nodiscard]] owner_id owner() const noexcept { return owner_; }
  [[nodiscard]] std::uint64_t key() const noexcept { return key_; }
  [[nodiscard]] bin& at(std::uint32_t place) noexcept { return bins_[place]; }
  [[nodiscard]] const bin& at(std::uint32_t place) const noexcept { return bins_[place]; }
  [[nodiscard]] std::uint32_t place_of(const bin& b) const noexcept {
    return static_cast<std::uint32_t>(&b - bins_.data());
  }
  /// The bin of that size, or null where it has none now. Any number of units; for none it may be a bin of no size,
  /// which holds nothing and takes nothing in.
  [[nodiscard]] bin* find(std::uint64_t units) noexcept {
    if (units - 1 < bin_places::exact) return bins_[units - 1].units == units ? &bins_[units - 1] : nullptr;
    // No bin's size has more than 32 bits, so a place found by the low ones is of no other size.
    const std::uint32_t place = bin_places::of_shared(static_cast<std::uint32_t>(units));
    if (bins_[place].units == units) return &bins_[place];
    const std::uint32_t second = bin_places::second_choice(place);
    return bins_[second].units == units ? &bins_[second] : nullptr;
  }
  /// The bin that is to become that size's, by the caller, once it is empty. Requires that `find` finds none.
  [[nodiscard]] bin& bin_to_change(std::uint32_t units) noexcept {
    const std::uint32_t place = bin_places::of(units);
    if (units <= bin_places::exact) return bins_[place];
    const std::uint32_t second = bin_places::second_choice(place);
    return bins_[second].count < bins_[place].count ? bins_[second] : bins_[place];
  }
  /// The bin may hold blocks of that size from here on: it is in use.
  void open(bin& b, std::uint32_t units, std::uint8_t most) noexcept {
    b.units = units;
    b.unused = 0;
    b.most = most;
    in_use_.add(place_of(b));
  }
  /// Requires that it is empty.
  void close(bin& b) noexcept {
    b.most = 0;
    in_use_.remove(place_of(b));
  }

  /// The first bin from `place` on that is in use, or `no_bin`.
  [[nodiscard]] std::uint32_t next_in_use(std::uint32_t place) const noexcept { return in_use_.next(place); }

 private:
  /// Some of the bins.
  class bin_set {
   public:
    void add(std::uint32_t place) noexcept { words_[place / 64] |= std::uint64_t{1} << (place % 64); }
    void remove(std::uint32_t place) noexcept { words_[place / 64] &= ~(std::uint64_t{1} << (place % 64)); }
    [[nodiscard]] std::uint32_t next(std::uint32_t place) const noexcept {
      for (; place < bin_places::all; place = (place | 63U) + 1) {
        const std::uint64_t word = words_[place / 64] >> (place % 64);
        if (word != 0) return place + static_cast<std::uint32_t>(std::countr_zero(word));
      }
      return no_bin;
    }

   private:
    std::array<std::uint64_t, bin_places::all / 64> words_{};
  };

  std::array<bin, bin_places::all> bins_;  // first, where a bin's place is all that its address needs
  owner_id owner_;
  std::uint64_t key_;
  bin_set in_use_;
};

}  // namespace gpumem
