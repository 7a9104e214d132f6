// The record behind every block, and the table that allocates records.
//
// Positions are plain numbers without further meaning here. A record is one cache line, and a table never moves one, so
// an index or a reference stays valid for the record's life. The heap's owner locks. Records are reused, so the table
// holds 64 B for each block of the busiest moment, rounded up to 64 KiB.
#pragma once

#include <cassert>
#include <cstdint>
#include <memory>
#include <vector>

#include "block_ids.hpp"

namespace gpumem {

using segment_index = std::uint32_t;

enum class block_state : std::uint8_t {
  unused,    ///< the record is not in use
  live,      ///< the program holds it
  free,      ///< cached for its owner, or idle if the owner is `idle_owner`
  fenced,    ///< waits for other streams; in no index
  leaked,    ///< never used again
  unbacked,  ///< addresses without memory, whole pages of a paged segment; in no index
  vacating,  ///< will be unbacked: its memory backs other addresses, and is mapped here while work here is pending
};

/// A free block's place in its owner's index. Unbacked and vacating blocks form a list by `older` and `newer`.
struct index_links {
  std::uint64_t epoch = 0;       ///< the owner's epoch at the latest free in it
  block_index left = no_block;   ///< subtree of smaller (bytes, begin)
  block_index right = no_block;  ///< subtree of larger (bytes, begin)
  block_index older = no_block;  ///< neighbours in the owner's list by epoch
  block_index newer = no_block;
};

/// Data of a live or fenced block.
struct use_record {
  std::uint64_t freed_epoch = 0;  ///< for a fenced block: its owner's epoch at the free
  std::uint32_t uses = no_block;  ///< head of the pool's list of other streams that use it
  std::uint32_t generation = 0;   ///< among the blocks of its size (whole_segments.hpp)
};

struct alignas(64) block {
  std::uint64_t begin = 0;
  std::uint64_t bytes = 0;
  block_index prev = no_block;  ///< neighbour that ends where this one begins, in the same segment
  block_index next = no_block;
  segment_index segment = 0;
  owner_id owner = idle_owner;
  block_state state = block_state::unused;
  std::uint8_t segment_class = 0;  ///< class of its segment
  bool in_region = false;          ///< belongs to its owner's region (pieces.hpp)
  union {
    index_links in_index;  ///< while free, unbacked or vacating
    use_record in_use;     ///< while live, fenced or leaked
  };
  block() noexcept : in_index{} {}
};
static_assert(sizeof(block) == 64, "a block's record is one cache line");

/// Whether a block's addresses have memory of their own; false for an unused record.
[[nodiscard]] constexpr bool has_memory(const block& block) noexcept {
  return block.state != block_state::unbacked && block.state != block_state::vacating &&
         block.state != block_state::unused;
}

class block_table {
 public:
  [[nodiscard]] block& operator[](block_index index) noexcept { return *locate(index); }
  [[nodiscard]] const block& operator[](block_index index) const noexcept { return *locate(index); }

  /// A record with default fields. Throws std::bad_alloc if `make_room` would, with nothing changed.
  block_index take() {
    make_room(1);
    block_index i = spare_;
    if (i != no_block) {
      block& b = (*this)[i];
      spare_ = b.prev;
      b = block{};
    } else {
      i = made_++;
      (*this)[i] = block{};
    }
    ++used_;
    return i;
  }
  /// After this the next `records` calls of `take` throw nothing.
  void make_room(std::uint32_t records) {
    while (chunks_.size() * records_a_chunk - used_ < std::size_t{set_aside_} + records) {
      chunks_.push_back(std::make_unique<block[]>(records_a_chunk));
    }
  }
  /// Makes `take` leave `records` records alone until the next call of this. Requires that there is room for them.
  void set_aside(std::uint32_t records) noexcept { set_aside_ = records; }
  void give(block_index index) noexcept {
    block& b = (*this)[index];
    b.state = block_state::unused;
    b.prev = spare_;
    spare_ = index;
    --used_;
  }

  /// Splits a block and returns the one with exactly these bounds. The parts in front and behind become blocks with the
  /// same state, owner and epoch. Requires that the block is in no index or list, and room for two records.
  block_index cut(block_index index, std::uint64_t begin, std::uint64_t bytes) {
    assert((*this)[index].begin <= begin && begin + bytes <= (*this)[index].begin + (*this)[index].bytes);
    if ((*this)[index].begin != begin) index = split(index, begin);
    if ((*this)[index].bytes != bytes) split(index, begin + bytes);
    return index;
  }
  /// Merges a block with its upper neighbour, whose record is freed. Requires that neither is in an index or list.
  void merge_next(block_index index) noexcept {
    block& b = (*this)[index];
    const block_index next = b.next;
    const block& a = (*this)[next];
    b.bytes += a.bytes;
    b.next = a.next;
    if (b.next != no_block) (*this)[b.next].prev = index;
    give(next);
  }

  [[nodiscard]] std::uint32_t used() const noexcept { return used_; }
  /// Records below this index have been handed out at some time.
  [[nodiscard]] std::uint32_t made() const noexcept { return made_; }
  [[nodiscard]] std::uint64_t bytes() const noexcept { return chunks_.size() * records_a_chunk * sizeof(block); }

 private:
  static constexpr std::size_t records_a_chunk = 1024;

  [[nodiscard]] block* locate(block_index index) const noexcept {
    assert(index < made_);
    return &chunks_[index / records_a_chunk][index % records_a_chunk];
  }

  // Splits a block at `boundary` and returns the upper part.
  block_index split(block_index low, std::uint64_t boundary) {
    const block_index high = take();
    block& l = (*this)[low];
    block& h = (*this)[high];
    h = l;
    h.begin = boundary;
    h.bytes = l.begin + l.bytes - boundary;
    l.bytes = boundary - l.begin;
    h.prev = low;
    l.next = high;
    if (h.next != no_block) (*this)[h.next].prev = high;
    return high;
  }

  std::vector<std::unique_ptr<block[]>> chunks_;
  std::uint32_t made_ = 0;
  std::uint32_t used_ = 0;
  std::uint32_t set_aside_ = 0;
  block_index spare_ = no_block;
};

}  // namespace gpumem
