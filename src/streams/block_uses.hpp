// Blocks that other streams than their own use: who uses each, and those that are freed but wait for these uses.
//
// A use is noted while the block is live. When it is freed, a fence is recorded on each stream that uses it, before the
// block becomes `fenced`; it becomes free when all of them are done. The program keeps these streams until then. While
// a capture forbids fences, or the host has no memory for one, the block waits without and `poll` records it later,
// under `query` as an event on the context, since the stream may have ended. The pool's lock guards all of it; nothing
// here waits or throws, but for `make_room` and `hold_fences`.
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
  block_uses(const block_uses&) = delete;
  block_uses& operator=(const block_uses&) = delete;

  /// Host memory for one `add`, and for the free of its block later.
  void make_room();
  /// Work on `user` uses the live block, too. Requires room.
  void add(block_index index, owner_id user) noexcept;
  [[nodiscard]] bool any(block_index index) const noexcept { return heap_.at(index).in_use.uses != no_block; }

  /// Frees a live block with uses in the order of `owner`, whose slot its reference names: at once where no other
  /// stream's use is left to wait for, else when their fences are done. A fence whose query fails leaks the block.
  void free(block_index index, owner_id owner) noexcept;
  /// Asks the fences of the blocks that wait, and frees those whose uses are all done.
  void poll() noexcept;
  /// The blocks that wait, in no order.
  [[nodiscard]] const std::vector<block_index>& waiting() const noexcept { return waiting_; }
  /// The stream whose work a waiting block waits for; if several, any.
  [[nodiscard]] owner_id waits_for(block_index index) const noexcept;

  /// Frees a block that waits for the stream that is ordered behind its free and every use of it. False where that
  /// stream is not; then `waits` has what is missing, if it can be had.
  bool take_over(device_waits& waits, block_index index) noexcept;
  /// The same for each block that waits, of owner `owner` only where that is not `idle_owner`.
  void take_over_all(device_waits& waits, owner_id owner) noexcept;
  /// Holds every fence that a waiting block still needs, recording those that are missing. Throws std::bad_alloc.
  void hold_fences(held_fences* held);

  /// Adds to `references`, by owner, the uses of a live or waiting block; for a check.
  void count_references(block_index index, std::vector<std::uint32_t>* references) const noexcept;
  [[nodiscard]] std::uint64_t metadata_bytes() const noexcept {
    return uses_.capacity() * sizeof(use) + waiting_.capacity() * sizeof(block_index);
  }

 private:
  /// Of a waiting block, with the fence behind it.
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
  void drop(block_index index) noexcept;
  void leak(block_index index) noexcept;

  heap& heap_;
  stream_order& streams_;
  const std::string name_;
  std::vector<use> uses_;  // of all blocks, each block's a list
  std::uint32_t spare_ = no_block;
  std::vector<block_index> waiting_;
};

}  // namespace gpumem
