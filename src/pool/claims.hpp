// Who holds a block, for the paths that take no lock: the program, a thread's cache, or nobody but the heap.
//
// A claim is one word a block. The program's claim becomes a cache's by one compare-and-swap, which is all that a free
// costs and what catches a second free, however many threads try. The table finds the claim of an address without a
// lock: slots of one word (32 bits of hash, the block's number), published one at a time. A reader may miss an entry
// that is just being moved; it then takes the lock, under which `find` is exact. Everything but `find` and the words of
// claims is done under the pool's lock. At most half full: 16 B of claim and 16 to 32 B of slots for each block that
// was out of the heap in the busiest moment; tables that were outgrown are kept for late readers, as much again.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

#include "block.hpp"
#include "gpumem/device.hpp"
#include "gpumem/request.hpp"
#include "host_array.hpp"

namespace gpumem {

enum class holder : std::uint8_t {
  nobody,   ///< the heap has it
  program,  ///< live
  cache,    ///< a thread's cache or the depot
};

/// The word of a claim: all that a hit has to know. The default is nobody's.
class claim_word {
 public:
  static constexpr owner_id most_owner = 0xffff;
  static constexpr std::uint64_t most_units = (std::uint64_t{1} << 36) - 1;

  constexpr claim_word() noexcept = default;
  constexpr explicit claim_word(std::uint64_t bits) noexcept : bits_{bits} {}
  /// The program's. `bytes` is a multiple of 512, `requested` at most 511 less, `owner` at most `most_owner`.
  constexpr claim_word(std::uint64_t bytes, std::uint64_t requested, owner_id owner, bool plain) noexcept
      : bits_{std::uint64_t{1} | (plain ? 0U : odd_bit) | (bytes - requested) << slack_shift |
              std::uint64_t{owner} << owner_shift | bytes / block_granularity << units_shift} {}

  [[nodiscard]] constexpr std::uint64_t bits() const noexcept { return bits_; }
  [[nodiscard]] constexpr holder held_by() const noexcept { return static_cast<holder>(bits_ & 3U); }
  /// The program's, and nothing about it needs the lock: no other stream uses it, no graph owns it.
  [[nodiscard]] constexpr bool plainly_live() const noexcept { return (bits_ & 7U) == 1; }
  [[nodiscard]] constexpr owner_id owner() const noexcept {
    return static_cast<owner_id>(bits_ >> owner_shift & most_owner);
  }
  [[nodiscard]] constexpr std::uint64_t units() const noexcept { return bits_ >> units_shift; }
  [[nodiscard]] constexpr std::uint64_t bytes() const noexcept { return units() * block_granularity; }
  [[nodiscard]] constexpr std::uint64_t requested_bytes() const noexcept {
    return bytes() - (bits_ >> slack_shift & 511U);
  }
  [[nodiscard]] constexpr claim_word cached() const noexcept { return claim_word{(bits_ & ~low_bits) | 2U}; }
  [[nodiscard]] constexpr claim_word odd() const noexcept { return claim_word{bits_ | odd_bit}; }
  /// A cached one, handed to the program for `requested` bytes.
  [[nodiscard]] constexpr claim_word handed_out(std::uint64_t requested) const noexcept {
    return claim_word{(bits_ & ~low_bits) | (bytes() - requested) << slack_shift | 1U};
  }

 private:
  static constexpr unsigned slack_shift = 3;
  static constexpr unsigned owner_shift = 12;
  static constexpr unsigned units_shift = 28;
  static constexpr std::uint64_t odd_bit = 4;
  static constexpr std::uint64_t low_bits = 0xfff;  // holder, odd, slack

  std::uint64_t bits_ = 0;
};

struct claim {
  std::atomic<address> begin;
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
  claim_table();

  [[nodiscard]] claim& operator[](block_index i) const noexcept {
    return chunks_[i >> chunk_shift][i & (chunk_claims - 1)];
  }
  /// The claim whose block begins there, or `no_block`. Any thread; exact under the lock.
  [[nodiscard]] block_index find(address at) const noexcept {
    const table& t = *current_.load(std::memory_order_acquire);
    const std::uint32_t hash = hash_of(at);
    for (std::uint32_t s = hash & t.mask;; s = (s + 1) & t.mask) {
      const std::uint64_t slot = t.slots[s].load(std::memory_order_acquire);
      const auto i = static_cast<block_index>(slot);
      if (i == no_block) return no_block;
      if (static_cast<std::uint32_t>(slot >> 32) == hash && (*this)[i].begin.load(std::memory_order_relaxed) == at)
        return i;
    }
  }

  /// Enters a block that left the heap. Requires that neither it nor its address is in the table.
  void insert(address at, block_index i, claim_word w);
  /// Takes a block out; its claim becomes nobody's.
  void erase(block_index i) noexcept;
  [[nodiscard]] std::uint32_t size() const noexcept { return count_; }
  [[nodiscard]] std::uint64_t bytes() const noexcept;

 private:
  static constexpr unsigned chunk_shift = 12;
  static constexpr std::uint32_t chunk_claims = 1U << chunk_shift;
  static constexpr std::size_t most_chunks = std::size_t{1} << (31 - chunk_shift);  // as many as there can be blocks
  static constexpr std::uint64_t empty = ~std::uint64_t{0};
  struct table {
    std::uint32_t mask = 0;
    host_array<std::atomic<std::uint64_t>> slots;
  };

  static std::uint32_t hash_of(address at) noexcept {
    return static_cast<std::uint32_t>(((at >> 9) * 0x9e37'79b9'7f4a'7c15ULL) >> 32);
  }
  static std::unique_ptr<table> make_table(std::uint32_t slots);
  static void place(table& t, std::uint64_t entry) noexcept;
  void grow();
  claim* more_claims();

  host_array<claim*> chunks_{most_chunks};  // untouched pages of it are not taken from the system
  std::vector<host_array<claim>> storage_;
  std::vector<std::unique_ptr<table>> tables_;  // the last one is in use
  std::atomic<table*> current_{nullptr};
  std::size_t made_ = 0;  // chunks
  std::size_t left_ = 0;  // of the latest storage, those not made yet
  std::uint32_t count_ = 0;
};

}  // namespace gpumem
