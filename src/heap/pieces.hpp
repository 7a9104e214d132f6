// Counts how segments are divided into pieces. Each change of a block updates the counts, so reading them costs O(1).
//
// A piece is a run of adjacent blocks with memory that belong to one region, or to none. An owner may be a region: its
// blocks, live or free, are the region's until it ends. A live block leaves an ended region only when it is freed. The
// pool's lock guards everything.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "block.hpp"

namespace gpumem {

struct piece_totals {
  std::uint64_t pieces = 0;
  // Blocks that are alone in their pieces:
  std::uint64_t undivided_live_blocks = 0;
  std::uint64_t undivided_free_blocks = 0;  ///< free or leaked
  std::uint64_t undivided_free_bytes = 0;
  friend bool operator==(const piece_totals&, const piece_totals&) = default;
};

/// Bytes of the blocks of one region, and how many of them are live.
struct region_totals {
  std::uint64_t bytes = 0;
  std::uint64_t live_bytes = 0;
  friend bool operator==(const region_totals&, const region_totals&) = default;
};

class piece_counter {
 public:
  /// Counts the blocks from `first` through the one that contains `end - 1` anew, because they change while it lives.
  /// With `neighbours` also the blocks beside them, which the change may join to other pieces or part from them. The
  /// record of the lowest of all these must stay.
  class recount {
   public:
    recount(piece_counter& counter, block_index first, std::uint64_t end, bool neighbours) noexcept
        : counter_{counter}, first_{first}, end_{end}, counts_{counter.may_change(first, end)} {
      if (!counts_) return;
      counter_.widen(&first_, &end_, neighbours);
      counter_.count(first_, end_, std::uint64_t{0} - 1);
    }
    /// The same for one block.
    recount(piece_counter& counter, block_index index, bool neighbours) noexcept
        : recount{counter, index, counter.blocks_[index].begin + counter.blocks_[index].bytes, neighbours} {}
    recount& operator=(recount&&) = delete;
    ~recount() {
      if (counts_) counter_.count(first_, end_, 1);
    }

   private:
    piece_counter& counter_;
    block_index first_;
    std::uint64_t end_;
    bool counts_;
  };

  explicit piece_counter(block_table& blocks) noexcept : blocks_{blocks} {}

  /// Makes room for owners up to this number. Throws std::bad_alloc with nothing changed.
  void make_room(std::size_t owners) {
    if (owners > owners_.size()) owners_.resize(owners);
  }
  /// Makes an owner without blocks a region.
  void begin_region(owner_id owner) noexcept;
  /// Ends a region. `oldest` is its first free block; the next is `in_index.newer`.
  void end_region(owner_id owner, block_index oldest) noexcept;
  /// Requires that the owner has no blocks.
  void remove_owner(owner_id owner) noexcept;
  /// Pages of addresses may lack memory from now on.
  void expect_unbacked() noexcept { has_unbacked_ = true; }

  /// Owners have smaller numbers.
  [[nodiscard]] std::size_t owners() const noexcept { return owners_.size(); }
  /// Whether a block of that owner belongs to a region.
  [[nodiscard]] bool is_region(owner_id owner) const noexcept { return owners_[owner].is_region; }
  /// True if the change of an owner may join or part pieces.
  [[nodiscard]] bool has_regions() const noexcept { return regions_ != 0; }
  /// Gives a block to another owner.
  void set_owner(block_index index, owner_id owner) noexcept;

  [[nodiscard]] const piece_totals& totals() const noexcept { return totals_; }
  [[nodiscard]] const region_totals& of_region(owner_id owner) const noexcept { return owners_[owner].totals; }
  /// Whether the block is alone in its piece.
  [[nodiscard]] bool is_undivided(block_index index) const noexcept {
    return !joined(blocks_[index].prev, index) && !joined(index, blocks_[index].next);
  }
  /// Adds `sign` times the block's share to the totals, and to those of its region, if it has one.
  void add(block_index index, std::uint64_t sign, piece_totals* totals, region_totals* region) const noexcept;
  [[nodiscard]] std::uint64_t metadata_bytes() const noexcept { return owners_.capacity() * sizeof(owner_record); }

 private:
  struct owner_record {
    bool is_region = false;
    bool was_region = false;  // until the owner is removed: live blocks may still belong to the region
    region_totals totals;
  };

  /// False if changing these blocks changes no figure: without regions and pages a segment is one piece, and only a
  /// block that fills its segment is alone.
  [[nodiscard]] bool may_change(block_index first, std::uint64_t end) const noexcept {
    if (has_regions() || has_unbacked_) return true;
    const block* last = &blocks_[first];
    if (last->prev != no_block) return false;
    while (last->begin + last->bytes < end) last = &blocks_[last->next];
    return last->next == no_block;
  }
  void widen(block_index* first, std::uint64_t* end, bool neighbours) const noexcept;
  void count(block_index first, std::uint64_t end, std::uint64_t sign) noexcept;
  [[nodiscard]] bool joined(block_index low, block_index high) const noexcept;

  block_table& blocks_;
  std::vector<owner_record> owners_;
  piece_totals totals_;
  std::uint32_t regions_ = 0;  // owners that are or were regions
  bool has_unbacked_ = false;
};

}  // namespace gpumem
