// The driver calls for an arena's fences. Records and waits release the lock, because both can block.
#pragma once

#include "arena_state.hpp"

namespace gpumem {

class fence_calls {
 public:
  explicit fence_calls(arena_state& state) : state_{state} {}

  /// Updates every fence that is done by now; queries none during an announced capture (`stream_order::ask`). Records
  /// the fences that uses still lack, for which it releases the lock. True if memory became free. `most_pending` as for
  /// `block_uses::poll`.
  bool poll(arena_lock& lock, std::size_t most_pending = SIZE_MAX) GPUMEM_UNDER_LOCK;
  /// Reserves and records a fence behind all frees that have none, however few, and polls, up to `most_queries` times
  /// while one is pending. `named` is the slot of a stream whose handle is valid, or `idle_owner`.
  void fence_everything(arena_lock& lock, owner_id named) GPUMEM_UNDER_LOCK;
  /// Records reserved fences (`stream_order::reserve_fence`) without the lock: the driver blocks while a stream's queue
  /// is full, and other threads need not wait for that. If a capture begins meanwhile, the remaining fences fail, and
  /// others are recorded later.
  void record(arena_lock& lock) GPUMEM_UNDER_LOCK;
  /// Makes the missing waits on the device, also without the lock, so the caller must search again. Records the fences
  /// that they need first. Makes no further wait once a capture has begun on the device.
  void order(arena_lock& lock, device_waits& waits) GPUMEM_UNDER_LOCK;
  /// Returns what `take(waits)` finds for a stream that may wait on the device. Calls it again while waits are missing,
  /// and makes those in between.
  template <typename Take>
  block_index take_ordered(arena_lock& lock, owner_id waiter, const Take& take) GPUMEM_UNDER_LOCK {
    for (device_waits waits{state_.streams, waiter};; order(lock, waits)) {
      const block_index i = take(waits);
      if (i != no_block || !waits.missing()) return i;
    }
  }

  /// Waits on the host until one of the fences is done or a generation begins (both: `waited`). `nothing` if none is
  /// pending, a capture forbids the wait, or the time is over. Does not wait for fences that other threads are still
  /// recording.
  step_result wait_for_any(arena_lock& lock, const held_fences& held, const wait_deadline& deadline) GPUMEM_UNDER_LOCK;
  /// Waits for everything freed on that owner so far, and polls.
  void wait_for_owner(arena_lock& lock, owner_id owner, const wait_deadline& deadline) GPUMEM_UNDER_LOCK;
  /// Waits for every fence behind frees and uses, after recording the missing ones, and polls. False if it waited for
  /// nothing and nothing became free.
  bool wait_for_all(arena_lock& lock, const wait_deadline& deadline) GPUMEM_UNDER_LOCK;
  /// How often an event is queried again before the pool takes memory. An event on an idle stream is done 1.1 us after
  /// its record, a query takes 0.3 us, and a segment costs 100 us (bench/results/h100).
  static constexpr std::size_t most_queries = 16;
  /// True if the device has no work on any stream that the pool knows; memory freed so far is then idle. Waits for
  /// nothing. False as well if that cannot be asked: during a capture, or if one may be under way unnoticed. `stream`
  /// is the slot of a stream whose handle is valid and whose key is `stream_key`.
  bool finds_idle(arena_lock& lock, owner_id stream, std::uint64_t stream_key) GPUMEM_UNDER_LOCK;
  /// Adds to `held` the latest fence behind each owner's free blocks that others may use, and the fences of blocks that
  /// wait for uses; records the missing ones.
  void hold_all(arena_lock& lock, held_fences* held) GPUMEM_UNDER_LOCK;

 private:
  void hold_frees(held_fences* held) GPUMEM_UNDER_LOCK;
  bool ask_until_done(const held_fences& held) GPUMEM_UNDER_LOCK;
  bool order_one(arena_lock& lock, owner_id waiter, fence_index fence) GPUMEM_UNDER_LOCK;
  bool wait_for_each(arena_lock& lock, const held_fences& held, const wait_deadline& deadline) GPUMEM_UNDER_LOCK;

  arena_state& state_;
};

}  // namespace gpumem
