// The free blocks of each owner: an index by size for each class, and a list by epoch.
//
// A free block belongs to the stream that freed it, or to everybody (`idle_owner`). The heap inserts and erases blocks
// and merges them; searches here change nothing. The pool's lock guards everything.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "block.hpp"
#include "free_index.hpp"
#include "gpumem/status.hpp"

namespace gpumem {

class free_lists {
 public:
  free_lists(block_table& blocks, unsigned classes) : blocks_{blocks}, classes_{classes} {}

  [[nodiscard]] unsigned classes() const noexcept { return classes_; }
  /// The number of the owner that `add_owner` adds next.
  [[nodiscard]] owner_id next_owner() const noexcept {
    return spare_owners_.empty() ? static_cast<owner_id>(owners_.size()) : spare_owners_.back();
  }
  /// Adds an owner without blocks. Throws std::bad_alloc with nothing changed.
  owner_id add_owner();
  /// Requires that the owner has no free block. Its number is reused.
  void remove_owner(owner_id owner) noexcept;
  [[nodiscard]] bool empty(owner_id owner) const noexcept { return owners_[owner].oldest == no_block; }
  /// The owners of free blocks, without `idle_owner`, in no order. Taking an owner's last block moves the last of them
  /// into its place.
  [[nodiscard]] const std::vector<owner_id>& owners() const noexcept { return owners_with_blocks_; }

  /// Inserts a free block into its owner's index, and into the owner's list by epoch after `after` (first if
  /// `no_block`). Notes owned blocks that have an idle neighbour now.
  void insert(block_index index, block_index after) noexcept;
  void erase(block_index index) noexcept;
  /// The owner's block with the lowest epoch, `no_block` if it has none; `in_index.newer` leads to the next.
  [[nodiscard]] block_index oldest(owner_id owner) const noexcept { return owners_[owner].oldest; }
  [[nodiscard]] block_index newest(owner_id owner) const noexcept { return owners_[owner].newest; }

  /// Whether the block (or `no_block`) is free for `owner` or, with `idle_too`, idle.
  [[nodiscard]] bool holds(block_index index, owner_id owner, bool idle_too) const noexcept {
    if (index == no_block) return false;
    const block& b = blocks_[index];
    return b.state == block_state::free && (b.owner == owner || (idle_too && b.owner == idle_owner));
  }
  /// Whether a neighbour of the block is idle.
  [[nodiscard]] bool is_beside_idle(block_index index) const noexcept {
    return holds(blocks_[index].prev, idle_owner, false) || holds(blocks_[index].next, idle_owner, false);
  }
  /// Removes and returns a noted block of the owner that has an idle neighbour; `no_block` if there is none.
  [[nodiscard]] block_index take_beside_idle(owner_id owner) noexcept;
  /// True, once, if notes were dropped: the caller then checks all free blocks of the owner.
  [[nodiscard]] bool take_unnoted(owner_id owner) noexcept;

  /// The best fit among the free blocks of `owner` and, with `idle_too`, the idle ones. With `own_first`, idle ones
  /// only if no block of the owner fits.
  [[nodiscard]] block_index best_fit(unsigned segment_class, owner_id owner, bool idle_too, std::uint64_t bytes,
                                     std::uint64_t alignment, bool own_first = false) const noexcept;
  /// The first block of at least `bytes` that is free for `owner` (idle, for `idle_owner`), in the order of size and
  /// address, that `accepts`; `no_block` if it accepts none.
  template <typename Accepts>
  [[nodiscard]] block_index first_where(unsigned segment_class, owner_id owner, std::uint64_t bytes,
                                        const Accepts& accepts) const {
    return owners_[owner].by_class[segment_class].first_where(blocks_, bytes, accepts);
  }
  /// The lowest large enough block among those of `owner` and the idle ones; a block of exactly the size comes first.
  /// `own_first` as for `best_fit`.
  [[nodiscard]] block_index lowest_fit(unsigned segment_class, owner_id owner, std::uint64_t bytes,
                                       std::uint64_t alignment, bool own_first = false) const noexcept;
  /// The block that is free for `owner` (idle, for `idle_owner`) and covers `[begin, begin + bytes)`; `no_block` if
  /// there is none. Reads no shorter block: most free blocks are short.
  [[nodiscard]] block_index covering(owner_id owner, std::uint64_t begin, std::uint64_t bytes) const noexcept;
  /// The bytes of the largest block, of any owner.
  [[nodiscard]] std::uint64_t largest_bytes() const noexcept;
  /// Calls `visit` with the index of each block of at least `bytes` that is free for `owner` (idle, for `idle_owner`),
  /// in no order. `visit` changes nothing.
  template <typename Visit>
  void visit(owner_id owner, std::uint64_t bytes, const Visit& visit) const {
    for (const free_index& each : owners_[owner].by_class) each.visit_at_least(blocks_, bytes, visit);
  }

  [[nodiscard]] std::uint64_t metadata_bytes() const noexcept;
  /// Checks every index and list, which hold `free_blocks` blocks; `corrupt` names the broken invariant.
  [[nodiscard]] status validate(std::uint64_t free_blocks) const;

 private:
  struct owner_record {
    std::vector<free_index> by_class;
    block_index oldest = no_block;  // by epoch, which never decreases towards `newest`
    block_index newest = no_block;
    // Every free block with an idle neighbour, plus stale entries. Once it outgrows the free blocks, all of these are
    // visited instead.
    std::vector<block_index> beside_idle;
    bool any_beside_idle = false;
    std::uint32_t place = 0;  // index in `owners_with_blocks_`, while it has a free block
    bool in_use = false;
  };

  [[nodiscard]] std::size_t count(owner_id owner) const noexcept;
  void enter_order(block_index index, block_index after) noexcept;
  void leave_order(block_index index) noexcept;
  void note_beside_idle(block_index index) noexcept;
  [[nodiscard]] status validate_owner(owner_id owner) const;
  [[nodiscard]] status validate_beside_idle(owner_id owner) const;

  block_table& blocks_;
  unsigned classes_;
  std::vector<owner_record> owners_;
  std::vector<owner_id> spare_owners_;
  std::vector<owner_id> owners_with_blocks_;
};

/// The error of a broken invariant of the heap.
[[nodiscard]] status broken_heap(std::string_view message, std::uint64_t position);

}  // namespace gpumem
