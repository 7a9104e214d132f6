// Frees behind all work of the device, as a preloaded cudaFree is one: the block is free for others when everything
// that the device was given until then is done.
//
// One stream stands for all work; what is freed in its order by the lock waits for a fence of the whole context.
// Threads set such frees aside without the lock (src/cache), record a fence behind each batch, and bring the batches
// later: each becomes an owner of its own, so that what was enqueued after it is waited for by nobody.
#pragma once

#include "fence_calls.hpp"

namespace gpumem {

class context_order {
 public:
  context_order(arena_state& state, fence_calls& fences) : state_{state}, fences_{fences} {}

  /// From here on that stream stands for all work. Once.
  void begin(stream_ref all, std::uint64_t key) GPUMEM_UNDER_LOCK;
  /// Of what is freed so; nobody where there are no such frees.
  [[nodiscard]] owner_id owner() const noexcept { return owner_; }

  /// Without the lock: a fence behind all work; none while something captures, or where it cannot be made.
  [[nodiscard]] std::optional<fence> record() noexcept;
  /// The owner of a batch behind that fence, until `end_batch`; `owner()` where there is no fence, or the host is
  /// short.
  [[nodiscard]] owner_id begin_batch(fence batch_fence) noexcept GPUMEM_UNDER_LOCK;
  void end_batch(owner_id owner) noexcept GPUMEM_UNDER_LOCK;
  /// A fence behind what was freed by the lock; false where none can be recorded now.
  bool cover(arena_lock& lock) GPUMEM_UNDER_LOCK;

  /// A capture begins: no further `record` is made.
  void forbid() noexcept { records_.close(); }
  /// Waits for events on the context that other threads record.
  void wait_for_records(arena_lock& lock) const GPUMEM_UNDER_LOCK;
  /// It has ended.
  void allow() noexcept { records_.open(); }

 private:
  arena_state& state_;
  fence_calls& fences_;
  owner_id owner_ = idle_owner;
  record_gate records_;
};

}  // namespace gpumem
