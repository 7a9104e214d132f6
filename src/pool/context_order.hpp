// Frees ordered behind all work of the device, as a preloaded cudaFree is: others may use the block once everything
// submitted to the device before the free is done.
//
// One stream slot represents all work. A block freed through it under the lock waits for a fence on the whole context.
// Threads also defer such frees without the lock (src/cache): they record a fence behind each batch and hand the
// batches over later. Each batch gets an owner of its own, so its blocks do not wait for work enqueued after its fence.
#pragma once

#include "fence_calls.hpp"

namespace gpumem {

class context_order {
 public:
  context_order(arena_state& state, fence_calls& fences) : state_{state}, fences_{fences} {}

  /// Makes `all` the stream that represents all work. Called once.
  void begin(stream_ref all, std::uint64_t key) GPUMEM_UNDER_LOCK;
  /// The owner of blocks freed behind all work under the lock; `idle_owner` before `begin`.
  [[nodiscard]] owner_id owner() const noexcept { return owner_; }

  /// Records a fence behind all work, without the lock. Returns none during a capture, or if recording fails.
  [[nodiscard]] std::optional<fence> record() noexcept;
  /// Returns the owner to which the caller frees the blocks behind `batch_fence` before `end_batch`; `owner()` if the
  /// fence is empty or the host is out of memory. Takes over the fence.
  [[nodiscard]] owner_id begin_batch(fence batch_fence) noexcept GPUMEM_UNDER_LOCK;
  void end_batch(owner_id owner) noexcept GPUMEM_UNDER_LOCK;
  /// Reserves and records the fence that the frees under the lock still need; false if none can be reserved now. May
  /// release the lock.
  bool cover(arena_lock& lock) GPUMEM_UNDER_LOCK;

  /// Counts a free that was made in context order under the lock. Records a fence behind as many as make a batch.
  void freed(arena_lock& lock, std::uint64_t bytes) GPUMEM_UNDER_LOCK;

  /// A capture begins: `record` returns none until `allow`.
  void forbid() noexcept { records_.close(); }
  /// Waits until no other thread is recording an event on the context.
  void wait_for_records(arena_lock& lock) const GPUMEM_UNDER_LOCK;
  /// The capture has ended.
  void allow() noexcept { records_.open(); }

 private:
  arena_state& state_;
  fence_calls& fences_;
  owner_id owner_ = idle_owner;
  record_gate records_;
  std::uint32_t unfenced_frees_ GPUMEM_GUARDED_BY(under_arena_lock) = 0;  // under the lock, since the last fence
  std::uint64_t unfenced_bytes_ GPUMEM_GUARDED_BY(under_arena_lock) = 0;  // their bytes
};

}  // namespace gpumem
