// The heap: segments of a number line cut into blocks, best fit with coalescing on both sides.
//
// It knows positions, owners and epochs, never a device, a stream or a clock; the pool gives them meaning. A free block
// belongs to an owner (the stream that may use it at once) or to everybody (`idle_owner`). A request gets the best fit
// among its owner's and the idle blocks. The remainder is always split off, because every multiple of 512 B is a useful
// block. The pool's lock guards everything. Each state change of a block is one function: `carve`, `release`, `fence`,
// `leak`, `make_idle`, `hand_over`, and in paged segments `commit` and `decommit` (heap_pages.cpp). A paged segment is
// a range of addresses with memory behind some of its pages; the rest is unbacked and vacating blocks, which count only
// in `unbacked_bytes`.
#pragma once

#include <cstdint>
#include <vector>

#include "block.hpp"
#include "free_lists.hpp"
#include "gpumem/status.hpp"
#include "heap_counters.hpp"
#include "pieces.hpp"
#include "unbacked_list.hpp"
#include "whole_segments.hpp"

namespace gpumem {

struct heap_segment {
  std::uint64_t begin = 0;
  std::uint64_t bytes = 0;  ///< 0: the slot is not in use
  block_index first = no_block;
  std::uint8_t segment_class = 0;
  bool paged = false;  ///< added unbacked: memory stands behind some of its pages
  segment_history history{};
};

class heap {
 public:
  explicit heap(unsigned classes);

  /// Adds an owner without blocks.
  owner_id add_owner();
  /// Requires that the owner has no free block. Its number is reused.
  void remove_owner(owner_id owner) noexcept;
  /// The free blocks: by owner, by age, by size. Searches there find blocks to carve from.
  [[nodiscard]] const free_lists& free_blocks() const noexcept { return free_; }

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
  /// of 512, and the range touches no other segment's blocks. The first block in it will have `first_bytes`, if not 0.
  segment_index add_segment(std::uint64_t begin, std::uint64_t bytes, unsigned segment_class, bool backed = true,
                            std::uint64_t first_bytes = 0);
  /// True if one idle block covers the whole segment.
  [[nodiscard]] bool segment_idle(segment_index segment) const noexcept;
  /// Requires `segment_idle`.
  void remove_segment(segment_index segment) noexcept;
  [[nodiscard]] const std::vector<heap_segment>& segments() const noexcept { return segments_; }
  /// Whether a block of `bytes` in this free one would be in the way of large requests (whole_segments.hpp).
  [[nodiscard]] bool in_the_way(block_index index, std::uint64_t bytes) const noexcept {
    const heap_segment& segment = segments_[blocks_[index].segment];
    return whole_.in_the_way(segment.history, segment.bytes, bytes);
  }

  /// Cuts a live block of `bytes` at `alignment` out of a free block that a search found for them.
  block_index carve(block_index source, std::uint64_t bytes, std::uint64_t alignment);

  // placement at given addresses: by a plan, or where the fewest pages are missing
  /// Cuts a live block `[begin, begin + bytes)` out of blocks that are free for `owner` or idle. `source` contains
  /// `begin`. Requires that these blocks cover the whole range.
  block_index carve_at(block_index source, std::uint64_t begin, std::uint64_t bytes, owner_id owner);
  /// Merges the free blocks from `first` through the one that contains `end - 1`, and idle neighbours, into one that is
  /// free for `owner`. Requires that they are all free; `epoch` as for `release`.
  block_index unite(block_index first, std::uint64_t end, owner_id owner, std::uint64_t epoch);

  // paged segments (heap_pages.cpp)
  /// Turns `bytes` from `begin` on, part of the unbacked or vacating block `index`, into a block that is free for
  /// `owner`, merged with free neighbours of `owner`; `epoch` as for `release`. Returns the block.
  block_index commit(block_index index, std::uint64_t begin, std::uint64_t bytes, owner_id owner = idle_owner,
                     std::uint64_t epoch = 0);
  /// Turns `bytes` from `begin` on, part of the free block or all of the vacating block `index`, into an unbacked
  /// block, merged with unbacked neighbours, or into a vacating one. Returns the block. Throws nothing for a vacating
  /// block.
  block_index decommit(block_index index, std::uint64_t begin, std::uint64_t bytes,
                       block_state becomes = block_state::unbacked);
  /// The unbacked and the vacating blocks.
  [[nodiscard]] const unbacked_list& unbacked() const noexcept { return unbacked_; }

  /// Makes a live or fenced block free for `owner`, merged with free neighbours of `owner` and, with `idle_too`, idle
  /// ones. Requires that `epoch` is not below any that was used for `owner` before.
  void release(block_index index, owner_id owner, std::uint64_t epoch, bool idle_too) noexcept;
  /// Makes a live block fenced.
  void fence(block_index index) noexcept;
  /// Marks a live or fenced block as leaked: it is never allocated again.
  void leak(block_index index) noexcept;
  /// Makes every free block of `owner` with an epoch of at most `done` idle. If `lost`, makes these blocks leaked,
  /// because the driver failed on the fence that covers them.
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
  [[nodiscard]] const heap_totals& totals() const noexcept { return counters_.totals(); }
  [[nodiscard]] const class_totals& totals(unsigned segment_class) const noexcept {
    return counters_.totals(segment_class);
  }
  [[nodiscard]] piece_counter& pieces() noexcept { return pieces_; }
  [[nodiscard]] const piece_counter& pieces() const noexcept { return pieces_; }
  [[nodiscard]] std::uint64_t metadata_bytes() const noexcept;

  /// Checks every invariant; `corrupt` names the broken one.
  [[nodiscard]] status validate() const;

 private:
  [[nodiscard]] piece_counter::recount recount_of_merge(block_index index, owner_id owner, bool idle_too) noexcept;
  /// Makes a live or fenced block free for `owner`: merges it with free neighbours of that owner (and with idle ones if
  /// `idle_too`), and adds it to the owner's free list as the newest of its epoch.
  void make_free(block_index index, owner_id owner, std::uint64_t epoch, bool idle_too) noexcept;
  void make_leaked(block_index index) noexcept;
  [[nodiscard]] block_index cut_from_free(block_index index, std::uint64_t begin, std::uint64_t bytes);
  /// Adds a free block to its owner's free list and, behind `after`, to the owner's list by epoch.
  void add_to_free_lists(block_index index, block_index after) noexcept;
  /// Removes a free block from both.
  void remove_from_free_lists(block_index index) noexcept;
  block_index merge_with_idle(block_index index) noexcept;

  block_table blocks_;
  free_lists free_;
  heap_counters counters_;
  unbacked_list unbacked_{blocks_};
  piece_counter pieces_{blocks_};
  std::vector<heap_segment> segments_;
  std::vector<segment_index> spare_segments_;
  whole_segments whole_;
};

}  // namespace gpumem
