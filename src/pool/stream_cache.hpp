// What one thread keeps of one stream: bins of freed blocks by exact size, and the frees that no bin took.
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

#include "block.hpp"
#include "claims.hpp"
#include "gpumem/request.hpp"

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
  [[nodiscard]] static constexpr std::uint32_t beside(std::uint32_t place) noexcept { return place ^ 1U; }
  /// Whether a block counts against the limit.
  [[nodiscard]] static constexpr bool weighs(std::uint64_t units) noexcept { return units > small_units; }
  /// And for how much.
  [[nodiscard]] static constexpr std::uint64_t weight(std::uint64_t units) noexcept {
    return weighs(units) ? units * block_granularity : 0;
  }
};

/// A thread's blocks of one stream.
class stream_cache {
 public:
  static constexpr std::uint8_t room = 62;
  static constexpr std::uint32_t batch = 30;  ///< blocks that change their place at once

  /// Blocks of one size. The first of its lines of memory has all that a bin needs that holds little.
  struct alignas(64) bin {
    std::uint32_t units = 0;  ///< of 512 B; 0: of no size yet
    std::uint8_t count = 0;
    std::uint8_t most = 0;               ///< how many it may hold now
    std::uint8_t unused = 0;             ///< the fewest that it held since it was looked at, or was full, last
    std::array<claim_index, room> held;  ///< the claims of its blocks, the latest last

    /// Requires that it is in use and has room.
    void push(claim_index i) noexcept {
      held[count] = i;
      ++count;
    }
    /// Requires that it is in use, empty, and has room for so many.
    void fill(const claim_index* first, std::uint32_t blocks) noexcept {
      std::copy_n(first, blocks, held.begin());
      count = static_cast<std::uint8_t>(blocks);
    }
    /// The same, so that the first of them is popped first.
    void fill_reversed(std::span<const claim_index> blocks) noexcept {
      std::reverse_copy(blocks.begin(), blocks.end(), held.begin());
      count = static_cast<std::uint8_t>(blocks.size());
    }
    /// Requires that it holds one.
    [[nodiscard]] claim_index pop() noexcept {
      const std::uint8_t left = --count;
      if (left < unused) [[unlikely]]  // and no store of what mostly stays as it is
        unused = left;
      return held[left];
    }
    /// It was full, and holds a batch all the time since: its thread frees what another one allocates.
    [[nodiscard]] bool piles_up() const noexcept { return unused >= batch; }
    /// Without its oldest batch, which the caller has taken since it was full.
    void drop_batch() noexcept {
      drop_oldest(batch);
      unused = count;
    }
    /// Without its oldest blocks, which the caller has taken.
    void drop_oldest(std::uint32_t going) noexcept {
      std::copy(held.begin() + going, held.begin() + count, held.begin());
      count = static_cast<std::uint8_t>(count - going);
      unused = static_cast<std::uint8_t>(unused - std::min<std::uint32_t>(unused, going));
    }
  };
  static_assert(sizeof(bin) == 256);

  /// Whole batches beside a bin of small blocks. Threads that hand blocks to each other would have to meet for each
  /// batch, and what the pool's lock guards travels from one processor to the other each time; so it is for several.
  struct stack {
    static constexpr std::uint32_t most = 7;
    std::uint32_t count = 0;
    std::uint32_t allowed = 0;                              ///< of how many its owner may make use without the lock
    std::array<std::array<claim_index, batch>, most> held;  ///< the last is used first

    /// Without its oldest batches, which the caller has taken.
    void drop_oldest(std::uint32_t going) noexcept {
      if (going == 0) return;
      std::copy(held.begin() + going, held.begin() + count, held.begin());
      count -= going;
    }
  };
  static constexpr std::uint32_t no_bin = bin_places::all;

  /// Blocks that no bin took, in the order of their frees: on their way to the heap. It has them before it is asked for
  /// another one, so that places are as if it had had them at once; their thread takes the lock once for all of them.
  struct deferred_frees {
    static constexpr std::uint32_t most = 16;
    std::uint32_t count = 0;
    std::array<claim_index, most> held;
  };

  stream_cache(owner_id owner, std::uint64_t key) : owner_{owner}, key_{key} {}

  /// For another stream from here on. Requires that it is empty, and every bin closed.
  void begin_anew(owner_id owner, std::uint64_t key) noexcept {
    owner_ = owner;
    key_ = key;
  }
  [[nodiscard]] owner_id owner() const noexcept { return owner_; }
  [[nodiscard]] std::uint64_t key() const noexcept { return key_; }
  [[nodiscard]] bin& at(std::uint32_t place) noexcept { return bins_[place]; }
  [[nodiscard]] std::uint32_t place_of(const bin& b) const noexcept {
    return static_cast<std::uint32_t>(&b - bins_.data());
  }
  [[nodiscard]] deferred_frees& deferred() noexcept { return deferred_; }
  /// The bin of that size, or null where it has none now. Requires 1 to `bin_places::most_units`.
  [[nodiscard]] bin* find(std::uint32_t units) noexcept {
    const std::uint32_t place = bin_places::of(units);
    if (bins_[place].units == units) [[likely]]
      return &bins_[place];
    if (units <= bin_places::exact) return nullptr;
    const std::uint32_t second = bin_places::beside(place);
    return bins_[second].units == units ? &bins_[second] : nullptr;
  }
  /// The bin of that size, or null where it has none now; of up to 64 KiB, the one that may hold that size, if none.
  /// Any number of units; none at all may give a bin that has no size yet, and so holds and takes nothing.
  [[nodiscard]] bin* that_serves(std::uint64_t units) noexcept {
    if (units - 1 < bin_places::exact) [[likely]]
      return &bins_[units - 1];
    // No bin's size has more than 32 bits, so where one is equal, these are all.
    const std::uint32_t place = bin_places::of_shared(static_cast<std::uint32_t>(units));
    if (bins_[place].units == units) [[likely]]
      return &bins_[place];
    const std::uint32_t second = bin_places::beside(place);
    return bins_[second].units == units ? &bins_[second] : nullptr;
  }
  /// The bin that is to become that size's, by the caller, once it is empty. Requires that `find` finds none.
  [[nodiscard]] bin& bin_to_change(std::uint32_t units) noexcept {
    const std::uint32_t place = bin_places::of(units);
    if (units <= bin_places::exact) return bins_[place];
    const std::uint32_t second = bin_places::beside(place);
    return bins_[second].count < bins_[place].count ? bins_[second] : bins_[place];
  }
  /// The bin may hold blocks of that size from here on: it is in use.
  void open(bin& b, std::uint32_t units, std::uint8_t most) noexcept {
    b.units = units;
    b.unused = 0;
    b.most = most;
    in_use_.add(place_of(b));
    on_condition_.remove(place_of(b));
  }
  /// The batches beside that bin; null for one of larger blocks.
  [[nodiscard]] stack* beside(const bin& b) noexcept {
    const std::uint32_t place = place_of(b);
    return place < bin_places::small_bins ? &beside_[place] : nullptr;
  }
  /// Its oldest batch goes beside it; false where it is not full, or no more may lie there.
  bool set_aside(bin& b) noexcept {
    stack* const all = beside(b);
    if (b.count != room || all == nullptr || all->count >= all->allowed) return false;
    std::copy_n(b.held.begin(), batch, all->held[all->count].begin());
    ++all->count;
    b.drop_batch();
    return true;
  }
  /// The latest batch from beside it is its own; false where none lies there. Requires that it is empty.
  bool take_from_beside(bin& b) noexcept {
    stack* const all = beside(b);
    if (all == nullptr || all->count == 0) return false;
    --all->count;
    b.fill(all->held[all->count].data(), batch);
    return true;
  }
  /// Requires that it is empty, and nothing lies beside it.
  void close(bin& b) noexcept {
    b.most = 0;
    if (stack* const all = beside(b)) all->allowed = 0;
    in_use_.remove(place_of(b));
    on_condition_.remove(place_of(b));
  }
  /// It holds blocks that would return to their places, until the heap changes. Requires that it is in use.
  void put_on_condition(bin& b) noexcept { on_condition_.add(place_of(b)); }
  [[nodiscard]] bool is_on_condition(const bin& b) const noexcept { return on_condition_.has(place_of(b)); }

  /// The first bin from `place` on that is in use, or `no_bin`.
  [[nodiscard]] std::uint32_t next_in_use(std::uint32_t place) const noexcept { return in_use_.next(place); }
  /// The same of those on that condition.
  [[nodiscard]] std::uint32_t next_on_condition(std::uint32_t place) const noexcept {
    return on_condition_.next(place);
  }

 private:
  /// Some of the bins.
  class bin_set {
   public:
    void add(std::uint32_t place) noexcept { words_[place / 64] |= std::uint64_t{1} << (place % 64); }
    void remove(std::uint32_t place) noexcept { words_[place / 64] &= ~(std::uint64_t{1} << (place % 64)); }
    [[nodiscard]] bool has(std::uint32_t place) const noexcept { return (words_[place / 64] >> place % 64 & 1U) != 0; }
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
  bin_set on_condition_;
  deferred_frees deferred_;
  std::array<stack, bin_places::small_bins> beside_;
};

}  // namespace gpumem
