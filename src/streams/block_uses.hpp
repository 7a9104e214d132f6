// Blocks that other streams use besides their own: the users of each block, and freed blocks that wait for these uses.
//
// A use is recorded while the block is live. When the block is freed, a fence is recorded on each stream that uses it,
// before the block becomes `fenced`; it becomes free when all of these fences are done. The program keeps the streams
// alive until the free. While a capture forbids fences, or the host has no memory for one, the block waits without a
// fence and `poll` records it later; under `query` as an event on the context, since the stream may have ended. The
// pool's lock guards everything. No function waits; only `make_room` and `hold_fences` throw.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "device_waits.hpp"
#include "heap.hpp"
#include "stream_holds.hpp"
#include "stream_order.hpp"

namespace gpumem {

class block_uses {
 public:
  /// `name` is the pool's, for the log.
  block_uses(heap& heap, stream_order& streams, std::string name)
      : heap_{heap}, streams_{streams}, name_{std::move(name)} {}
  block_uses& operator=(block_uses&&) = delete;

  /// Reserves host memory for one `add`, and for the later free of its block.
  void make_room();
  /// Records that work on `user` also uses the live block. Requires room.
  void add(block_index index, owner_id user) noexcept;
  [[nodiscard]] bool any(block_index index) const noexcept { return heap_.at(index).in_use.uses != no_block; }

  /// Frees a live block with uses in the order of `owner`, which must own it already (`arena::transfer_ownership`): at
  /// once if no other stream uses it, else when the uses' fences are done. A fence whose query fails leaks the block.
  void free(block_index index, owner_id owner) noexcept;
  /// Queries the fences of waiting blocks, in the order of their frees, and frees the blocks whose uses are all done.
  /// Ends at the `most_pending`-th block that waits on.
  void poll(std::size_t most_pending = SIZE_MAX) noexcept;
  /// The blocks that wait, in the order of their frees.
  [[nodiscard]] const std::vector<block_index>& waiting() const noexcept { return waiting_; }
  /// Bytes of the largest block that waits; 0 if none does. Walks them only after blocks have left.
  [[nodiscard]] std::uint64_t largest_waiting() const noexcept;
  /// The stream whose work a waiting block waits for; any of them if several.
  [[nodiscard]] owner_id waits_for(block_index index) const noexcept;

  /// Frees a waiting block for the waiter of `waits` if that stream is ordered behind the block's free and every use.
  /// False if it is not; `waits` then has the missing waits that can be made.
  bool take_over(device_waits& waits, block_index index) noexcept;
  /// The same for every waiting block, or only for those of `owner` if it is not `idle_owner`.
  void take_over_all(device_waits& waits, owner_id owner) noexcept;
  /// Adds every fence that a waiting block still needs to `held`, and records the missing ones. Throws std::bad_alloc.
  void hold_fences(held_fences* held);

  /// Adds the uses of a live or waiting block to `references`, indexed by owner. For a check.
  void count_references(block_index index, std::vector<std::uint32_t>* references) const noexcept;
  [[nodiscard]] std::uint64_t metadata_bytes() const noexcept {
    return uses_.capacity() * sizeof(use) + waiting_.capacity() * sizeof(block_index);
  }

 private:
  /// One stream's use of a block, with its fence once the block waits.
  struct use {
    owner_id user = idle_owner;
    fence_index fence = no_fence;
    std::uint32_t next = no_block;
  };
  enum class wait : std::uint8_t { done, pending, failed };

  void fence_use(use& entry, bool lives) noexcept;
  [[nodiscard]] wait ask_fences(block_index index) noexcept;
  [[nodiscard]] bool try_to_free(block_index index) noexcept;
  [[nodiscard]] bool is_behind_uses(device_waits& waits, block_index index) noexcept;
  [[nodiscard]] bool free_for(device_waits& waits, block_index index) noexcept;
  template <typename Leaves>
  void erase_waiting(const Leaves& leaves) noexcept;
  void drop(block_index index) noexcept;
  void leak(block_index index) noexcept;

  heap& heap_;
  stream_order& streams_;
  const std::string name_;
  std::vector<use> uses_;  // uses of all blocks; each block's uses form a list
  std::uint32_t spare_ = no_block;
  std::vector<block_index> waiting_;
  mutable std::uint64_t largest_waiting_ = 0;
  mutable bool largest_is_known_ = true;  // false after blocks have left `waiting_`
};

}  // namespace gpumem
