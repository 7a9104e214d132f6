// The heap: segments of a number line cut into blocks, best fit with coalescing on both sides.
//
// It knows positions, owners and epochs, never a device, a stream or a clock; the pool says what they mean.
// A free block belongs to an owner (the stream that may use it at once) or to everybody (`idle_owner`). A request
// is served by the best fit among its owner's and the idle blocks; what is left over is always split off, since
// every multiple of 512 B is worth a block. The pool's lock guards all of it. Each state change of a block is
// one function: `carve`, `release`, `fence`, `leak`, `make_idle`, `hand_over`, and of a paged segment `commit`,
// `decommit` (heap_pages.cpp). Such a segment is a range of addresses with memory behind some of its pages only: what
// has none is unbacked blocks, which count nowhere but in `unbacked_bytes`.
#pragma once

#include <cstdint>
#include <vector>

#include "block.hpp"
#include "free_index.hpp"
#include "gpumem/status.hpp"

namespace gpumem {

/// Bytes and blocks by state; the pool adds what only it knows.
struct heap_totals {
  std::uint64_t live_bytes = 0;
  std::uint64_t cached_bytes = 0;
  std::uint64_t idle_bytes = 0;
  std::uint64_t fenced_bytes = 0;
  std::uint64_t leaked_bytes = 0;
  std::uint64_t segment_bytes = 0;  ///< without what is unbacked
  std::uint64_t unbacked_bytes = 0;
  std::uint64_t live_blocks = 0;
  std::uint64_t free_blocks = 0;
  friend bool operator==(const heap_totals&, const heap_totals&) = default;
};

struct heap_segment {
  std::uint64_t begin = 0;
  std::uint64_t bytes = 0;  ///< 0: the slot stands for no segment
  block_index first = no_block;
  std::uint8_t segment_class = 0;
  bool paged = false;  ///< added unbacked: memory stands behind some of its pages
};

class heap {
 public:
  explicit heap(unsigned classes);

  /// A new owner with nothing in it.
  owner_id add_owner();
  /// Requires that it owns no free block; its number is used again.
  void remove_owner(owner_id owner) noexcept;
  [[nodiscard]] bool owns_nothing(owner_id owner) const noexcept { return owners_[owner].oldest == no_block; }
  /// The owners of free blocks that are not idle, in no order.
  [[nodiscard]] const std::vector<owner_id>& owners_of_free_blocks() const noexcept { return free_owners_; }

  // add_owner, add_segment, carve, commit, decommit and their like need host memory for records. Without it they throw
  // std::bad_alloc and change nothing. All other functions need none.
  /// After this, the next `add_segment` needs host memory only for its block.
  void make_room_for_segment();
  /// Reserves records for so many blocks. Each function above takes at most two.
  void make_room_for_blocks(std::uint32_t blocks) { blocks_.make_room(blocks); }
  /// Reserves that room for a caller that gives up the lock: others do not use it until this is called with 0. Requires
  /// that there is room.
  void set_blocks_aside(std::uint32_t blocks) noexcept { blocks_.set_aside(blocks); }

  /// One idle block over `[begin, begin + bytes)`, multiples of 512 that touch no other segment's blocks; where it is
  /// not backed, one unbacked block.
  segment_index add_segment(std::uint64_t begin, std::uint64_t bytes, unsigned segment_class, bool backed = true);
  /// True when one idle block covers all of it.
  [[nodiscard]] bool segment_idle(segment_index segment) const noexcept;
  /// Requires `segment_idle`.
  void remove_segment(segment_index segment) noexcept;
  [[nodiscard]] const std::vector<heap_segment>& segments() const noexcept { return segments_; }

  /// The best fit among the free blocks of `owner` and, with `idle_too`, the idle ones. Nothing changes.
  [[nodiscard]] block_index best_fit(unsigned segment_class, owner_id owner, bool idle_too, std::uint64_t bytes,
                                     std::uint64_t alignment) const noexcept;
  /// The lowest of the free blocks of `owner` and the idle ones that are large enough, unless one has exactly the size.
  [[nodiscard]] block_index lowest_fit(unsigned segment_class, owner_id owner, std::uint64_t bytes,
                                       std::uint64_t alignment) const noexcept;
  /// Cuts a live block of `bytes` at `alignment` out of a free one that `best_fit` found for them.
  block_index carve(block_index source, std::uint64_t bytes, std::uint64_t alignment);

  // at places that are chosen elsewhere: by a plan, or where the fewest pages are missing
  /// Cuts a live block `[begin, begin + bytes)` out of blocks that are free for `owner` or idle, `source` the one that
  /// contains `begin`. Requires that these cover all of it.
  block_index carve_at(block_index source, std::uint64_t begin, std::uint64_t bytes, owner_id owner);
  /// The free blocks from `first` up to the one that contains `end - 1` become one, free for `owner`, with the idle
  /// blocks beside it. Requires that they are all free, and of `epoch` what `release` does.
  block_index unite(block_index first, std::uint64_t end, owner_id owner, std::uint64_t epoch);

  // heap_pages.cpp, of paged segments
  /// `bytes` from `begin` on, part of the unbacked block `index`, become idle, merged with idle neighbours. Returns the
  /// block.
  block_index commit(block_index index, std::uint64_t begin, std::uint64_t bytes);
  /// `bytes` from `begin` on, part of the idle block `index`, become unbacked, merged with unbacked neighbours. Returns
  /// the block.
  block_index decommit(block_index index, std::uint64_t begin, std::uint64_t bytes);
  /// The first unbacked block of the list of these, in no order; the next is its `in_index.newer`.
  [[nodiscard]] block_index first_unbacked() const noexcept { return unbacked_; }
  /// The idle or cached block that was free longest, and from there `in_index.newer`.
  [[nodiscard]] block_index oldest_free(owner_id owner) const noexcept { return owners_[owner].oldest; }

  /// Live or fenced becomes free for `owner`, merged with free neighbours of `owner` and, with `idle_too`, idle ones.
  /// Requires that `epoch` is not below any that was used for `owner` before.
  void release(block_index index, owner_id owner, std::uint64_t epoch, bool idle_too) noexcept;
  /// Live becomes fenced.
  void fence(block_index index) noexcept;
  /// Live or fenced becomes leaked.
  void leak(block_index index) noexcept;
  /// Every free block of `owner` whose epoch is at most `done` becomes idle, or leaked where `lost`.
  void make_idle(owner_id owner, std::uint64_t done, bool lost = false) noexcept;
  /// Every free block of `source` whose epoch is at most `upto` becomes free for `heir`; true where there is one.
  bool hand_over(owner_id source, std::uint64_t upto, owner_id heir, std::uint64_t epoch, bool idle_too) noexcept;
  /// Merges each free block of `owner` with idle neighbours; true where that changed anything. Costs what has changed
  /// since the last call, at most a walk over the free blocks of `owner`.
  bool absorb_idle(owner_id owner) noexcept;

  [[nodiscard]] block& at(block_index index) noexcept { return blocks_[index]; }
  [[nodiscard]] const block& at(block_index index) const noexcept { return blocks_[index]; }
  /// The block that contains the position, in whatever state; `no_block` outside all segments. Slow: O(n).
  [[nodiscard]] block_index containing(std::uint64_t position) const noexcept;
  [[nodiscard]] std::uint64_t largest_free() const noexcept;  ///< bytes; cached and idle, not fenced
  [[nodiscard]] const heap_totals& totals() const noexcept { return totals_; }
  /// Of the segments of one class: their bytes, and what of that is cached or idle.
  [[nodiscard]] std::uint64_t segment_bytes(unsigned segment_class) const noexcept {
    return by_class_[segment_class].segment_bytes;
  }
  [[nodiscard]] std::uint64_t free_bytes(unsigned segment_class) const noexcept {
    return by_class_[segment_class].free_bytes;
  }
  [[nodiscard]] std::uint64_t metadata_bytes() const noexcept;

  /// Proves every invariant; `corrupt` names the one that does not hold.
  [[nodiscard]] status validate() const;

 private:
  struct owner_record {
    std::vector<free_index> by_class;
    block_index oldest = no_block;  // by epoch, which never decreases towards `newest`
    block_index newest = no_block;
    // Every free block with an idle neighbour, and stale ones; once there are more than free blocks, all are looked at.
    std::vector<block_index> beside_idle;
    bool any_beside_idle = false;
    std::uint32_t place = 0;  // in `free_owners_`, while it has a free block
    bool in_use = false;
  };

  /// How far into a block at `begin` the first aligned position lies.
  static std::uint64_t lead(std::uint64_t begin, std::uint64_t alignment) noexcept {
    return (alignment - begin % alignment) % alignment;
  }
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
  std::vector<class_totals> by_class_;
  block_index unbacked_ = no_block;
};

}  // namespace gpumem
