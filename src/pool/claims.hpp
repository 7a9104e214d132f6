// Who holds a block, for the paths that take no lock: the program, a thread's cache, or nobody but the heap.
//
// A claim is one word a block. The program's claim becomes a cache's by one compare-and-swap, which is all that a free
// costs and what catches a second free, however many threads try; while only one can, by a store. Claims stand in a
// hash table by address, address and word side by side, so that a free at random meets one line of memory and not
// three. A claim stays where it is from `insert` to `erase`, so a thread inside its cache reads the table without a
// lock; everything but `find` and the words is done under the pool's lock, and `grow` only while no thread is inside a
// cache. At most half full: 40 to 80 B for each block that was out of the heap in the busiest moment.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "block.hpp"
#include "gpumem/device.hpp"
#include "gpumem/request.hpp"
#include "host_array.hpp"
#include "prefetch.hpp"

namespace gpumem {

enum class holder : std::uint8_t {
  nobody,   ///< the heap has it
  program,  ///< live
  cache,    ///< a thread's cache or the depot
};

/// The word of a claim: all that a hit has to know. The default is nobody's.
///
/// From the lowest bit on: who holds the block (2), whether it is odd (1), its slack (9), owner (11), bin (9), and
/// units of 512 B (32). Of an odd one the slack alone means something; the rest is in the block's record.
class claim_word {
 public:
  static constexpr owner_id most_owner = 0x7ff;
  static constexpr std::uint64_t most_units = UINT32_MAX;

  constexpr claim_word() noexcept = default;
  constexpr explicit claim_word(std::uint64_t bits) noexcept : bits_{bits} {}
  /// The program's, and nothing about it needs the lock. `bytes` is a multiple of 512, of `most_units` at most,
  /// `requested` at most 511 less, `owner` at most `most_owner`, and `bin` where it probably belongs in a stream's
  /// cache, less than 512.
  [[nodiscard]] static constexpr claim_word plain(std::uint64_t bytes, std::uint64_t requested, owner_id owner,
                                                  std::uint32_t bin) noexcept {
    return claim_word{std::uint64_t{1} | (bytes - requested) << slack_shift | std::uint64_t{owner} << owner_shift |
                      std::uint64_t{bin} << bin_shift | bytes / block_granularity << units_shift};
  }
  /// The program's, with something about it that needs the lock.
  [[nodiscard]] static constexpr claim_word odd(std::uint64_t slack_bytes) noexcept {
    return claim_word{std::uint64_t{1} | odd_bit | slack_bytes << slack_shift};
  }

  [[nodiscard]] constexpr std::uint64_t bits() const noexcept { return bits_; }
  [[nodiscard]] constexpr holder held_by() const noexcept { return static_cast<holder>(bits_ & 3U); }
  /// The program's, and nothing about it needs the lock: no other stream uses it, no graph owns it.
  [[nodiscard]] constexpr bool plainly_live() const noexcept { return (bits_ & 7U) == 1; }
  /// That and the owner in one comparison: equal to `plain_tag_of(o)` where it is plainly live and of that owner.
  [[nodiscard]] constexpr std::uint64_t tag() const noexcept { return bits_ & tag_bits; }
  [[nodiscard]] static constexpr std::uint64_t plain_tag_of(owner_id o) noexcept {
    return std::uint64_t{o} << owner_shift | 1U;
  }
  static constexpr std::uint64_t no_tag = 3;  ///< what no claim has: there is no such holder
  /// How much less than its size was requested; of any that the program holds.
  [[nodiscard]] constexpr std::uint64_t slack_bytes() const noexcept { return bits_ >> slack_shift & 511U; }

  // What follows, of one that is not odd.
  [[nodiscard]] constexpr owner_id owner() const noexcept {
    return static_cast<owner_id>(bits_ >> owner_shift & most_owner);
  }
  [[nodiscard]] constexpr std::uint32_t bin() const noexcept { return static_cast<std::uint32_t>(bits_) >> bin_shift; }
  [[nodiscard]] constexpr std::uint64_t units() const noexcept { return bits_ >> units_shift; }
  [[nodiscard]] constexpr std::uint64_t bytes() const noexcept { return units() * block_granularity; }
  [[nodiscard]] constexpr std::uint64_t requested_bytes() const noexcept { return bytes() - slack_bytes(); }
  [[nodiscard]] constexpr claim_word cached() const noexcept { return claim_word{(bits_ & ~low_bits) | 2U}; }
  [[nodiscard]] constexpr claim_word in_bin(std::uint32_t bin) const noexcept {
    return claim_word{(bits_ & ~bin_bits) | std::uint64_t{bin} << bin_shift};
  }
  [[nodiscard]] constexpr claim_word made_odd() const noexcept { return claim_word{bits_ | odd_bit}; }
  /// A cached one, handed to the program for so much less than its size. Its slack is none and its holder 2 so far.
  [[nodiscard]] constexpr claim_word handed_out(std::uint64_t slack_bytes) const noexcept {
    return claim_word{bits_ + (slack_bytes << slack_shift) - 1};
  }

 private:
  static constexpr unsigned slack_shift = 3;
  static constexpr unsigned owner_shift = 12;
  static constexpr unsigned bin_shift = 23;
  static constexpr unsigned units_shift = 32;
  static constexpr std::uint64_t odd_bit = 4;
  static constexpr std::uint64_t bin_bits = std::uint64_t{0x1ff} << bin_shift;
  static constexpr std::uint64_t low_bits = 0xfff;                                         // holder, odd, slack
  static constexpr std::uint64_t tag_bits = std::uint64_t{most_owner} << owner_shift | 7;  // holder, odd, owner

  std::uint64_t bits_ = 0;
};

/// Where a claim stands, until the table grows. Counted in halves of one (8 B), so that an address is one addition for
/// the processor, which scales by eight at most.
using claim_index = std::uint32_t;

struct claim {
  std::atomic<address> begin;  // 0: never used, a search ends here; 1: nobody's any more, a search goes on
  std::atomic<std::uint64_t> word;

  [[nodiscard]] claim_word read() const noexcept { return claim_word{word.load(std::memory_order_acquire)}; }
  void write(claim_word w) noexcept { word.store(w.bits(), std::memory_order_release); }
  /// False where it is not `from` any more.
  [[nodiscard]] bool change(claim_word from, claim_word to) noexcept {
    std::uint64_t expected = from.bits();
    return word.compare_exchange_strong(expected, to.bits(), std::memory_order_acq_rel, std::memory_order_relaxed);
  }
};

class claim_table {
 public:
  /// A claim, where it stands, and what it said when it was looked at; nobody's where there is none.
  struct sight {
    claim* of = nullptr;
    claim_index at = 0;
    std::uint64_t bits = 0;  // as a class, it would be a detour through memory in a free

    [[nodiscard]] claim_word word() const noexcept { return claim_word{bits}; }
  };

  claim_table() : claim_table{first_places} {}

  [[nodiscard]] claim& operator[](claim_index i) const noexcept { return at_place(claims_.data(), i); }
  /// Has the claim of that block fetched to be changed, as `find` is about to look at it and another thread may have
  /// changed it last.
  void fetch_to_find(address at) const noexcept { prefetch_to_write(&at_place(claims_.data(), home_of(at))); }
  /// Has that claim fetched, which another thread may have changed last.
  void fetch(claim_index i) const noexcept { __builtin_prefetch(&at_place(claims_.data(), i)); }
  /// The claim of the block that begins there. A thread inside its cache, or under the lock.
  [[nodiscard]] sight find(address at) const noexcept {
    claim* const table = claims_.data();
    const claim_index mask = mask_;
    claim_index i = home_of(at);
    for (;;) {
      // The word first: where it is a later block's, then so is the address that is read after it.
      claim& c = at_place(table, i);
      const claim_word word = c.read();
      const address begin = c.begin.load(std::memory_order_relaxed);
      if (begin == at) [[likely]]
        return {&c, i, word.bits()};
      if (begin == 0) return {};
      i = (i + 2) & mask;
    }
  }
  [[nodiscard]] block_index block_of(claim_index i) const noexcept { return blocks_[i / 2]; }

  /// Enters a block that left the heap. Requires that there is room, and no claim at that address.
  claim_index insert(address at, block_index i, claim_word w) noexcept;
  /// Takes a block out; its claim becomes nobody's.
  void erase(claim_index i) noexcept;
  [[nodiscard]] bool has_room() const noexcept {
    const std::uint32_t half = places() / 2;
    return count_ < half && used_ < half + half / 2;
  }
  /// Makes room. Requires that no thread is inside a cache; every claim then stands elsewhere.
  void grow();

  [[nodiscard]] std::uint32_t size() const noexcept { return count_; }
  [[nodiscard]] std::uint64_t bytes() const noexcept {
    return std::uint64_t{places()} * (sizeof(claim) + sizeof(block_index));
  }

 private:
  static constexpr address taken_out = 1;              // no block begins there
  static constexpr std::uint32_t first_places = 8192;  // room for 4096 claims: growing empties the caches

  explicit claim_table(std::uint32_t places);

  [[nodiscard]] std::uint32_t places() const noexcept { return mask_ / 2 + 1; }
  [[nodiscard]] static claim& at_place(claim* table, claim_index i) noexcept {
    return *reinterpret_cast<claim*>(reinterpret_cast<std::byte*>(table) + std::size_t{i} * (sizeof(claim) / 2));
  }
  // Blocks 4 KiB apart have their homes a line of memory apart, a little more: threads that hand a run of blocks to
  // each other have it fetched ahead by the processor. Blocks 512 B apart lie three eighths of the table from each
  // other, so that two threads' small neighbours share no line.
  [[nodiscard]] claim_index home_of(address at) const noexcept {
    return static_cast<claim_index>((at * spread_) >> 31) & mask_;
  }
  // How far apart homes are for each 512 B, in halves of a claim times 2^22: an eighth of a line, once more an eighth
  // of the square root of 3 less 1 (of which multiples are spread evenly, so that large blocks are, too), and 3/8 of
  // the table, which eight times come to nothing.
  [[nodiscard]] static constexpr std::uint64_t spread_over(std::uint32_t places) noexcept {
    return 4'578'109 + (std::uint64_t{3} * places << 20);
  }
  [[nodiscard]] claim_index next(claim_index i) const noexcept { return (i + 2) & mask_; }

  claim_index mask_;      // of a place
  std::uint64_t spread_;  // see home_of
  host_array<claim> claims_;
  host_array<block_index> blocks_;       // by place
  alignas(64) std::uint32_t count_ = 0;  // that somebody holds; not beside what `find` reads
  std::uint32_t used_ = 0;               // places with an address: a search goes on behind them
};

}  // namespace gpumem
