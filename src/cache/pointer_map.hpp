// The holder of each block, for the paths without the lock: the program, a thread's cache, or only the heap.
//
// Each block that is out of the heap has a slot with one owner word. A free changes the word from the program's to a
// cache's by one compare-and-swap, which detects a second free, however many threads try. Slots are in a hash table by
// address, with address and word side by side, so a random free touches one cache line and not three. A slot keeps its
// place from `insert` to `erase`, so a thread inside its cache reads the table without a lock. All functions except
// `find` and those on words require the pool's lock, and `grow` requires that no thread is inside a cache. At most half
// full: 40 to 80 B for each block that was out of the heap in the busiest moment.
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

/// A block's holder and owner, and the data that the paths without the lock need. By default nobody holds the block.
///
/// From the lowest bit on: holder (2), whether it needs the lock (1), slack (9), owner (20), and units of 512 B (32).
/// In a word that needs the lock only the slack is valid; the rest is in the block's record.
class owner_word {
 public:
  static constexpr owner_id most_owner = 0xf'ffff;
  static constexpr std::uint64_t most_units = UINT32_MAX;

  constexpr owner_word() noexcept = default;
  constexpr explicit owner_word(std::uint64_t bits) noexcept : bits_{bits} {}
  /// Held by the program, and does not need the lock. `bytes` is a multiple of 512 of at most `most_units`, `requested`
  /// is at most 511 less, `owner` is at most `most_owner`.
  [[nodiscard]] static constexpr owner_word plain(std::uint64_t bytes, std::uint64_t requested,
                                                  owner_id owner) noexcept {
    return owner_word{std::uint64_t{1} | (bytes - requested) << slack_shift | std::uint64_t{owner} << owner_shift |
                      bytes / block_granularity << units_shift};
  }
  /// Held by the program, and needs the lock.
  [[nodiscard]] static constexpr owner_word needs_lock(std::uint64_t slack_bytes) noexcept {
    return owner_word{std::uint64_t{1} | needs_lock_bit | slack_bytes << slack_shift};
  }

  [[nodiscard]] constexpr std::uint64_t bits() const noexcept { return bits_; }
  [[nodiscard]] constexpr holder held_by() const noexcept { return static_cast<holder>(bits_ & 3U); }
  /// Held by the program, and does not need the lock: no other stream uses it, no graph owns it.
  [[nodiscard]] constexpr bool plainly_live() const noexcept { return (bits_ & 7U) == 1; }
  /// The block's size less its requested bytes. Requires that the program holds the block.
  [[nodiscard]] constexpr std::uint64_t slack_bytes() const noexcept { return bits_ >> slack_shift & 511U; }

  // The following require a word that does not need the lock.
  [[nodiscard]] constexpr owner_id owner() const noexcept {
    return static_cast<owner_id>(bits_ >> owner_shift & most_owner);
  }
  [[nodiscard]] constexpr std::uint64_t units() const noexcept { return bits_ >> units_shift; }
  [[nodiscard]] constexpr std::uint64_t bytes() const noexcept { return units() * block_granularity; }
  [[nodiscard]] constexpr std::uint64_t requested_bytes() const noexcept { return bytes() - slack_bytes(); }
  [[nodiscard]] constexpr owner_word cached() const noexcept { return owner_word{(bits_ & ~low_bits) | 2U}; }
  [[nodiscard]] constexpr owner_word marked_needs_lock() const noexcept { return owner_word{bits_ | needs_lock_bit}; }
  /// The word of a cached block once it is handed to the program with that slack. Requires slack 0 and holder 2
  /// (`cache`).
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

/// Index of a slot. Valid until the table grows.
using slot_index = std::uint32_t;

struct pointer_slot {
  std::atomic<address> begin;  // 0: never used, a search ends here; 1: taken out, a search goes on
  std::atomic<std::uint64_t> word;

  [[nodiscard]] owner_word read() const noexcept { return owner_word{word.load(std::memory_order_acquire)}; }
  void write(owner_word value) noexcept { word.store(value.bits(), std::memory_order_release); }
  /// False if the word is no longer `old_word`.
  [[nodiscard]] bool change(owner_word old_word, owner_word new_word) noexcept {
    std::uint64_t expected = old_word.bits();
    return word.compare_exchange_strong(expected, new_word.bits(), std::memory_order_acq_rel,
                                        std::memory_order_relaxed);
  }
};

class pointer_map {
 public:
  /// A slot, its index, and its owner word when it was read; null and no holder if there is none.
  struct lookup {
    pointer_slot* slot = nullptr;
    slot_index index = 0;
    std::uint64_t bits = 0;  // a class here would take a detour through memory in a free

    [[nodiscard]] owner_word word() const noexcept { return owner_word{bits}; }
  };

  pointer_map() : pointer_map{first_places} {}

  [[nodiscard]] pointer_slot& operator[](slot_index slot) const noexcept { return pointers_[slot]; }
  /// The slot of the block that begins there. Requires the lock, or a thread inside its cache.
  [[nodiscard]] lookup find(address pointer) const noexcept {
    for (slot_index i = home_of(pointer);; i = next(i)) {
      // The word first: if it is a later block's, then so is the address that is read after it.
      pointer_slot& c = pointers_[i];
      const owner_word word = c.read();
      const address begin = c.begin.load(std::memory_order_relaxed);
      if (begin == pointer) [[likely]]
        return {&c, i, word.bits()};
      if (begin == 0) return {};
    }
  }
  [[nodiscard]] block_index block_of(slot_index slot) const noexcept { return blocks_[slot]; }

  /// Adds a block that left the heap. Requires room, and no slot at that address.
  slot_index insert(address pointer, block_index block, owner_word word) noexcept;
  /// Removes a block's slot.
  void erase(slot_index slot) noexcept;
  [[nodiscard]] bool has_room() const noexcept {
    const std::uint32_t half = places() / 2;
    return count_ < half && used_ < half + half / 2;
  }
  /// Makes room. Requires that no thread is inside a cache; every slot moves.
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
  // Blocks 4 KiB apart have their homes a little more than a cache line apart: if threads hand each other runs of
  // blocks, the processor prefetches them. Blocks 512 B apart have homes 3/8 of the table apart, so that small
  // neighbours of two threads share no line.
  [[nodiscard]] slot_index home_of(address pointer) const noexcept {
    return static_cast<slot_index>((pointer * spread_) >> 32) & mask_;
  }
  // Multiplicative hash, in slots x 2^23 per 512 B: 1/2 + (sqrt(3)-1)/16 slots, and 3/8 of the table, which separates
  // 512 B neighbours; over 4 KiB it wraps to 0. Multiples of sqrt(3)-1 spread large blocks evenly.
  [[nodiscard]] static constexpr std::uint64_t spread_over(std::uint32_t places) noexcept {
    return 4'578'109 + (std::uint64_t{3} * places << 20);
  }
  [[nodiscard]] slot_index next(slot_index slot) const noexcept { return (slot + 1) & mask_; }

  slot_index mask_;       // for an index
  std::uint64_t spread_;  // see home_of
  std::unique_ptr<pointer_slot[]> pointers_;
  std::unique_ptr<block_index[]> blocks_;  // by place
  alignas(64) std::uint32_t count_ = 0;    // slots with a holder; not on a line that `find` reads
  std::uint32_t used_ = 0;                 // entries with an address: searches continue past them
};

}  // namespace gpumem
