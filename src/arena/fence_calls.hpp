// The fences of an arena as driver calls: records and waits are made without the lock, since both can block.
#pragma once

#include "arena_state.hpp"

namespace gpumem {

class fence_calls {
 public:
  explicit fence_calls(arena_state& state) : state_{state} {}

  /// Takes note of every fence that is done by now; while a capture is under way none is asked (`stream_order::ask`).
  /// Records what uses still lack, for which the lock is given up. True where memory became free by it.
  bool poll(arena_lock& lock) GPUMEM_UNDER_LOCK;
  /// Records the fences before free memory that are missing, if only of a little, and polls. `named` is the slot of a
  /// stream that lives.
  void fence_everything(arena_lock& lock, owner_id named) GPUMEM_UNDER_LOCK;
  /// Records the fences that have a number only (`stream_order::record`): the driver blocks while the queue of a stream
  /// is full, and that is no reason for other threads to wait. Those that a capture has overtaken are left for later.
  void record(arena_lock& lock) GPUMEM_UNDER_LOCK;
  /// Makes the waits on the device that are missing, without the lock for the same reason; what was found under it is
  /// to be found again. Records the fences that they need first. None is made that a capture has overtaken.
  void order(arena_lock& lock, device_waits& waits) GPUMEM_UNDER_LOCK;
  /// What `take(waits)` finds for a stream that may wait on the device. It is asked again as long as it misses waits,
  /// which are made in between.
  template <typename Take>
  block_index take_ordered(arena_lock& lock, owner_id waiter, const Take& take) GPUMEM_UNDER_LOCK {
    for (device_waits waits{state_.streams, waiter};; order(lock, waits)) {
      const block_index i = take(waits);
      if (i != no_block || !waits.missing()) return i;
    }
  }

  /// Waits on the host until one of the fences is done, or a generation begins (both: `waited`). `nothing` where none
  /// of them is pending, a capture forbids the wait, or the time is over. Fences that others still record are not
  /// waited for.
  step_result wait_for_any(arena_lock& lock, const held_fences& held, const wait_deadline& deadline) GPUMEM_UNDER_LOCK;
  /// Waits for all that was freed on that owner so far, and takes note of it.
  void wait_for_owner(arena_lock& lock, owner_id owner, const wait_deadline& deadline) GPUMEM_UNDER_LOCK;
  /// Waits for every fence before free memory, recording those that are missing, and takes note of what is done. False
  /// where nothing was waited for and nothing became free.
  bool wait_for_all(arena_lock& lock, const wait_deadline& deadline) GPUMEM_UNDER_LOCK;
  /// Holds every fence before memory that is free for others, or waits for uses; records those that are missing.
  void hold_all(arena_lock& lock, held_fences* held) GPUMEM_UNDER_LOCK;

 private:
  bool order_one(arena_lock& lock, owner_id waiter, fence_index fence) GPUMEM_UNDER_LOCK;
  bool wait_for_each(arena_lock& lock, const held_fences& held, const wait_deadline& deadline) GPUMEM_UNDER_LOCK;

  arena_state& state_;
};

}  // namespace gpumem
