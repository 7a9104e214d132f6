// The heap: segments of a number line cut into blocks, best fit with coalescing on both sides.
//
// It knows positions, owners and epochs, never a device, a stream or a clock; the pool gives them meaning. A free block
// belongs to an owner (the stream that may use it at once) or to everybody (`idle_owner`). A request gets the best fit
// among its owner's and the idle blocks. The remainder is always split off, because every multiple of 512 B is a useful
// block. The pool's lock guards everything. Each state change of a block is one function: `carve`, `release`, `fence`,
// `leak`, `make_idle`, `hand_over`, and in paged segments `commit` and `decommit` (heap_pages.cpp). A paged segment is
// a range of addresses with memory behind some of its pages; the rest is unbacked blocks, which count only in
// `unbacked_bytes`.
#pragma once

#include <cstdint>
#include <vector>

#include "block.hpp"
#include "free_index.hpp"
#include "gpumem/status.hpp"
#include "heap_totals.hpp"
#include "pieces.hpp"

namespace gpumem {

struct heap_segment {
  std::uint64_t begin = 0;
  std::uint64_t bytes = 0;  ///< 0: the slot is not in use
  block_index first = no_block;
  std::uint8_t segment_class = 0;
  bool paged = false;  ///< added unbacked: memory stands behind some of its pages
};

class heap {
 public:
  explicit heap(unsigned classes);

  /// Adds an owner without blocks.
  owner_id add_owner();
  /// Requires that the owner has no free block. Its number is reused.
  void remove_owner(owner_id owner) noexcept;
  [[nodiscard]] bool owns_nothing(owner_id owner) const noexcept { return owners_[owner].oldest == no_block; }
  /// The owners of free blocks, without `idle_owner`, in no order.
  [[nodiscard]] const std::vector<owner_id>& owners_of_free_blocks() const noexcept { return free_owners_; }

  // add_owner, add_segment, carve, commit, decommit and the like need host memory for records. Without it they throw
  // std::bad_alloc and change nothing. All other functions need none.
  /// After this, the next `add_segment` needs host memory only for its block.
  void make_room_for_segment();
  /// Reserves records for `blocks` blocks. Each function above takes at most two.
  void make_room_for_blocks(std::uint32_t blocks) { blocks_.make_room(blocks); }
  /// Keeps that room for a caller that releases the lock: others do not use it until this is called with 0. Requires
  /// that there is room.
  void set_blocks_aside(std::uint32_t blocks) noexcept { blocks_.set_aside(blocks); }

  /// Adds one idle block over `[begin, begin + bytes)`, or one unbacked block if it is not `backed`. Both are multiples
  /// of 512, and the range touches no other segment's blocks.
  segment_index add_segment(std::uint64_t begin, std::uint64_t bytes, unsigned segment_class, bool backed = true);
  /// True if one idle block covers the whole segment.
  [[nodiscard]] bool segment_idle(segment_index segment) const noexcept;
  /// Requires `segment_idle`.
  void remove_segment(segment_index segment) noexcept;
  [[nodiscard]] const std::vector<heap_segment>& segments() const noexcept { return segments_; }

  /// The best fit among the free blocks of `owner` and, with `idle_too`, the idle ones. Nothing changes.
  [[nodiscard]] block_index best_fit(unsigned segment_class, owner_id owner, bool idle_too, std::uint64_t bytes,
                                     std::uint64_t alignment) const noexcept;
  /// The lowest large enough block among those of `owner` and the idle ones; a block of exactly the size comes first.
  [[nodiscard]] block_index lowest_fit(unsigned segment_class, owner_id owner, std::uint64_t bytes,
                                       std::uint64_t alignment) const noexcept;
  /// Cuts a live block of `bytes` at `alignment` out of a free block that `best_fit` found for them.
  block_index carve(block_index source, std::uint64_t bytes, std::uint64_t alignment);

  // placement at given addresses: by a plan, or where the fewest pages are missing
  /// Cuts a live block `[begin, begin + bytes)` out of blocks that are free for `owner` or idle. `source` contains
  /// `begin`. Requires that these blocks cover the whole range.
  block_index carve_at(block_index source, std::uint64_t begin, std::uint64_t bytes, owner_id owner);
  /// Merges the free blocks from `first` through the one that contains `end - 1`, and idle neighbours, into one that is
  /// free for `owner`. Requires that they are all free; `epoch` as for `release`.
  block_index unite(block_index first, std::uint64_t end, owner_id owner, std::uint64_t epoch);

  // paged segments (heap_pages.cpp)
  /// Turns `bytes` from `begin` on, part of the unbacked block `index`, into an idle block, merged with idle
  /// neighbours. Returns the block.
  block_index commit(block_index index, std::uint64_t begin, std::uint64_t bytes);
  /// Turns `bytes` from `begin` on, part of the idle block `index`, into an unbacked block, merged with unbacked
  /// neighbours. Returns the block.
  block_index decommit(block_index index, std::uint64_t begin, std::uint64_t bytes);
  /// The first block in the unordered list of unbacked blocks; the next is its `in_index.newer`.
  [[nodiscard]] block_index first_unbacked() const noexcept { return unbacked_; }
  /// The owner's block that has been free longest; `in_index.newer` leads to the later ones.
  [[nodiscard]] block_index oldest_free(owner_id owner) const noexcept { return owners_[owner].oldest; }

  /// Calls `visit` with the index of each idle block of at least `bytes`, in no order.
  template <typename Visit>
  void visit_idle(std::uint64_t bytes, const Visit& visit) const {
    for (const free_index& each : owners_[idle_owner].by_class) each.visit_at_least(blocks_, bytes, visit);
  }

  /// Makes a live or fenced block free for `owner`, merged with free neighbours of `owner` and, with `idle_too`, idle
  /// ones. Requires that `epoch` is not below any that was used for `owner` before.
  void release(block_index index, owner_id owner, std::uint64_t epoch, bool idle_too) noexcept;
  /// Makes a live block fenced.
  void fence(block_index index) noexcept;
  /// Makes a live or fenced block leaked.
  void leak(block_index index) noexcept;
  /// Makes every free block of `owner` with an epoch of at most `done` idle, or leaked if `lost`.
  void make_idle(owner_id owner, std::uint64_t done, bool lost = false) noexcept;
  /// Makes every free block of `source` with an epoch of at most `upto` free for `heir`; true if there was one.
  bool hand_over(owner_id source, std::uint64_t upto, owner_id heir, std::uint64_t epoch, bool idle_too) noexcept;
  /// Merges each free block of `owner` with its idle neighbours; true if that changed anything. Costs as much as has
  /// changed since the last call, at most a walk over the free blocks of `owner`.
  bool absorb_idle(owner_id owner) noexcept;

  [[nodiscard]] block& at(block_index index) noexcept { return blocks_[index]; }
  [[nodiscard]] const block& at(block_index index) const noexcept { return blocks_[index]; }
  /// The block that contains the position, in any state; `no_block` outside all segments. Slow: O(n).
  [[nodiscard]] block_index containing(std::uint64_t position) const noexcept;
  [[nodiscard]] std::uint64_t largest_free() const noexcept;  ///< bytes; cached and idle, not fenced
  [[nodiscard]] const heap_totals& totals() const noexcept { return totals_; }
  [[nodiscard]] piece_counter& pieces() noexcept { return pieces_; }
  [[nodiscard]] const piece_counter& pieces() const noexcept { return pieces_; }
  /// Bytes of one class's segments, and how many of them are cached or idle.
  [[nodiscard]] std::uint64_t segment_bytes(unsigned segment_class) const noexcept {
    return by_class_[segment_class].segment_bytes;
  }
  [[nodiscard]] std::uint64_t free_bytes(unsigned segment_class) const noexcept {
    return by_class_[segment_class].free_bytes;
  }
  [[nodiscard]] std::uint64_t metadata_bytes() const noexcept;

  /// Checks every invariant; `corrupt` names the broken one.
  [[nodiscard]] status validate() const;

 private:
  struct owner_record {
    std::vector<free_index> by_class;
    block_index oldest = no_block;  // by epoch, which never decreases towards `newest`
    block_index newest = no_block;
    // Every free block with an idle neighbour, plus stale entries. Once it outgrows the free blocks, all of these are
    // visited instead.
    std::vector<block_index> beside_idle;
    bool any_beside_idle = false;
    std::uint32_t place = 0;  // index in `free_owners_`, while it has a free block
    bool in_use = false;
  };

  /// The distance from `begin` to the first aligned position.
  static std::uint64_t lead(std::uint64_t begin, std::uint64_t alignment) noexcept {
    return (alignment - begin % alignment) % alignment;
  }
  [[nodiscard]] piece_counter::recount recount_of(block_index index, bool neighbours) noexcept {
    return {pieces_, index, blocks_[index].begin + blocks_[index].bytes, neighbours};
  }
  [[nodiscard]] piece_counter::recount recount_of_merge(block_index index, owner_id owner, bool idle_too) noexcept;
  void make_free(block_index index, owner_id owner, std::uint64_t epoch, bool idle_too) noexcept;
  [[nodiscard]] block_index cut_out(block_index index, std::uint64_t begin, std::uint64_t bytes);
  [[nodiscard]] block_index cut_from_free(block_index index, std::uint64_t begin, std::uint64_t bytes);
  void enter_unbacked(block_index index) noexcept;
  void leave_unbacked(block_index index) noexcept;
  void enter(block_index index, block_index after) noexcept;
  void leave(block_index index) noexcept;
  void note_beside_idle(block_index neighbour) noexcept;
  [[nodiscard]] bool is_beside_idle(block_index index) const noexcept;
  block_index merge_with_idle(block_index index) noexcept;
  void enter_order(block_index index, block_index after) noexcept;
  void leave_order(block_index index) noexcept;
  void merge_above(block_index index) noexcept;
  [[nodiscard]] bool joins(block_index neighbour, owner_id owner, bool idle_too) const noexcept;
  void count_free(const block& block, std::uint64_t more) noexcept;
  void count_out_of_use(const block& block) noexcept;
  [[nodiscard]] status validate_beside_idle(owner_id owner) const;
  [[nodiscard]] status validate_segment(segment_index segment, heap_totals* seen) const;
  [[nodiscard]] status validate_pieces() const;

  unsigned classes_;
  block_table blocks_;
  std::vector<owner_record> owners_;
  std::vector<owner_id> spare_owners_;
  std::vector<owner_id> free_owners_;  // without `idle_owner`
  std::vector<heap_segment> segments_;
  std::vector<segment_index> spare_segments_;
  struct class_totals {
    std::uint64_t segment_bytes = 0;
    std::uint64_t free_bytes = 0;
  };

  heap_totals totals_;
  piece_counter pieces_{blocks_};
  std::vector<class_totals> by_class_;
  block_index unbacked_ = no_block;
};

}  // namespace gpumem
