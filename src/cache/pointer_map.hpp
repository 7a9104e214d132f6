// Who holds a block, for the paths that take no lock: the program, a thread's cache, or nobody but the heap.
//
// Each block that is out of the heap has a slot with one owner word. A free changes the word from the program's to a
// cache's by one compare-and-swap, which is what catches a second free, however many threads try. Slots stand in a hash
// table by address, address and word side by side, so that a free at random meets one line of memory and not three. A
// slot stays where it is from `insert` to `erase`, so a thread inside its cache reads the table without a lock;
// everything but `find` and the words is done under the pool's lock, and `grow` only while no thread is inside a cache.
// At most half full: 40 to 80 B for each block that was out of the heap in the busiest moment.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>

#include "block_ids.hpp"
#include "gpumem/device.hpp"
#include "gpumem/request.hpp"

namespace gpumem {

enum class holder : std::uint8_t {
  nobody,   ///< the heap has it
  program,  ///< live
  cache,    ///< a thread's cache or the depot
};

/// A block's owner, and what the paths without the lock need to know of the block. By default it has no owner.
///
/// From the lowest bit on: holder (2), whether it needs the lock (1), its slack (9), owner (20), and units
/// of 512 B (32). Of one that needs the lock the slack alone means something; the rest is in the block's record.
class owner_word {
 public:
  static constexpr owner_id most_owner = 0xf'ffff;
  static constexpr std::uint64_t most_units = UINT32_MAX;

  constexpr owner_word() noexcept = default;
  constexpr explicit owner_word(std::uint64_t bits) noexcept : bits_{bits} {}
  /// The program's, and nothing about it needs the lock. `bytes` is a multiple of 512, of `most_units` at most,
  /// `requested` at most 511 less, `owner` at most `most_owner`.
  [[nodiscard]] static constexpr owner_word plain(std::uint64_t bytes, std::uint64_t requested,
                                                  owner_id owner) noexcept {
    return owner_word{std::uint64_t{1} | (bytes - requested) << slack_shift | std::uint64_t{owner} << owner_shift |
                      bytes / block_granularity << units_shift};
  }
  /// The program's, with something about it that needs the lock.
  [[nodiscard]] static constexpr owner_word needs_lock(std::uint64_t slack_bytes) noexcept {
    return owner_word{std::uint64_t{1} | needs_lock_bit | slack_bytes << slack_shift};
  }

  [[nodiscard]] constexpr std::uint64_t bits() const noexcept { return bits_; }
  [[nodiscard]] constexpr holder held_by() const noexcept { return static_cast<holder>(bits_ & 3U); }
  /// The program's, and nothing about it needs the lock: no other stream uses it, no graph owns it.
  [[nodiscard]] constexpr bool plainly_live() const noexcept { return (bits_ & 7U) == 1; }
  /// How much less than its size was requested; of any that the program holds.
  [[nodiscard]] constexpr std::uint64_t slack_bytes() const noexcept { return bits_ >> slack_shift & 511U; }

  // What follows, of one that does not need the lock.
  [[nodiscard]] constexpr owner_id owner() const noexcept {
    return static_cast<owner_id>(bits_ >> owner_shift & most_owner);
  }
  [[nodiscard]] constexpr std::uint64_t units() const noexcept { return bits_ >> units_shift; }
  [[nodiscard]] constexpr std::uint64_t bytes() const noexcept { return units() * block_granularity; }
  [[nodiscard]] constexpr std::uint64_t requested_bytes() const noexcept { return bytes() - slack_bytes(); }
  [[nodiscard]] constexpr owner_word cached() const noexcept { return owner_word{(bits_ & ~low_bits) | 2U}; }
  [[nodiscard]] constexpr owner_word marked_needs_lock() const noexcept { return owner_word{bits_ | needs_lock_bit}; }
  /// A cached one, handed to the program for so much less than its size. Its slack is none and its holder 2 so far.
  [[nodiscard]] constexpr owner_word handed_out(std::uint64_t slack_bytes) const noexcept {
    return owner_word{bits_ + (slack_bytes << slack_shift) - 1};
  }

 private:
  static constexpr unsigned slack_shift = 3;
  static constexpr unsigned owner_shift = 12;
  static constexpr unsigned units_shift = 32;
  static constexpr std::uint64_t needs_lock_bit = 4;
  static constexpr std::uint64_t low_bits = 0xfff;  // holder, needs-lock bit, slack

  std::uint64_t bits_ = 0;
};

/// The place of a slot, until the table grows.
using slot_index = std::uint32_t;

struct pointer_slot {
  std::atomic<address> begin;  // 0: never used, a search ends here; 1: nobody's any more, a search goes on
  std::atomic<std::uint64_t> word;

  [[nodiscard]] owner_word read() const noexcept { return owner_word{word.load(std::memory_order_acquire)}; }
  void write(owner_word value) noexcept { word.store(value.bits(), std::memory_order_release); }
  /// False where it is not `old_word` any more.
  [[nodiscard]] bool change(owner_word old_word, owner_word new_word) noexcept {
    std::uint64_t expected = old_word.bits();
    return word.compare_exchange_strong(expected, new_word.bits(), std::memory_order_acq_rel,
                                        std::memory_order_relaxed);
  }
};

class pointer_map {
 public:
  /// A slot, its place, and its owner word when it was read; nobody's where there is none.
  struct lookup {
    pointer_slot* slot = nullptr;
    slot_index index = 0;
    std::uint64_t bits = 0;  // as a class, it would be a detour through memory in a free

    [[nodiscard]] owner_word word() const noexcept { return owner_word{bits}; }
  };

  pointer_map() : pointer_map{first_places} {}

  [[nodiscard]] pointer_slot& operator[](slot_index slot) const noexcept { return pointers_[slot]; }
  /// The slot of the block that begins there. A thread inside its cache, or under the lock.
  [[nodiscard]] lookup find(address pointer) const noexcept {
    for (slot_index i = home_of(pointer);; i = next(i)) {
      // The word first: where it is a later block's, then so is the address that is read after it.
      pointer_slot& c = pointers_[i];
      const owner_word word = c.read();
      const address begin = c.begin.load(std::memory_order_relaxed);
      if (begin == pointer) [[likely]]
        return {&c, i, word.bits()};
      if (begin == 0) return {};
    }
  }
  [[nodiscard]] block_index block_of(slot_index slot) const noexcept { return blocks_[slot]; }

  /// Enters a block that left the heap. Requires that there is room, and no slot at that address.
  slot_index insert(address pointer, block_index block, owner_word word) noexcept;
  /// Takes a block out; its slot becomes nobody's.
  void erase(slot_index slot) noexcept;
  [[nodiscard]] bool has_room() const noexcept {
    const std::uint32_t half = places() / 2;
    return count_ < half && used_ < half + half / 2;
  }
  /// Makes room. Requires that no thread is inside a cache; every slot then stands elsewhere.
  void grow();

  [[nodiscard]] std::uint32_t size() const noexcept { return count_; }
  [[nodiscard]] std::uint64_t bytes() const noexcept {
    return std::uint64_t{places()} * (sizeof(pointer_slot) + sizeof(block_index));
  }

 private:
  static constexpr address taken_out = 1;              // no block begins there
  static constexpr std::uint32_t first_places = 8192;  // room for 4096 slots: growing empties the caches

  explicit pointer_map(std::uint32_t places);

  [[nodiscard]] std::uint32_t places() const noexcept { return mask_ + 1; }
  // Blocks 4 KiB apart have their homes a line of memory apart, a little more: threads that hand a run of blocks to
  // each other have it fetched ahead by the processor. Blocks 512 B apart lie three eighths of the table from each
  // other, so that two threads' small neighbours share no line.
  [[nodiscard]] slot_index home_of(address pointer) const noexcept {
    return static_cast<slot_index>((pointer * spread_) >> 32) & mask_;
  }
  // How far apart homes are for each 512 B, in slots times 2^23: half a slot, a 16th of the square root of 3 less 1 (of
  // which multiples are spread evenly, so that large blocks are, too), and 3/8 of the table, which eight times come to
  // nothing.
  [[nodiscard]] static constexpr std::uint64_t spread_over(std::uint32_t places) noexcept {
    return 4'578'109 + (std::uint64_t{3} * places << 20);
  }
  [[nodiscard]] slot_index next(slot_index slot) const noexcept { return (slot + 1) & mask_; }

  slot_index mask_;       // of a place
  std::uint64_t spread_;  // see home_of
  std::unique_ptr<pointer_slot[]> pointers_;
  std::unique_ptr<block_index[]> blocks_;  // by place
  alignas(64) std::uint32_t count_ = 0;    // that somebody holds; not beside what `find` reads
  std::uint32_t used_ = 0;                 // places with an address: a search goes on behind them
};

}  // namespace gpumem
