// The out-of-memory ladder: the steps of a request for which no free block fits. Each step returns a `step_result`; a
// step that released the lock has searched again since.
//
// Look: steps that invalidate no capture, noticed or not, and wait for no work, except step 4 under `host`
//   1 fences that are done by now   2 everything in threads' caches   3 idle neighbours merged
//   4 another stream's memory, behind fences on that stream           5 grow, as the policy says; if the device has
//                                                                       no work, idle segments may go back first,
//                                                                       else they may become one later
// Before step 2, the pool grows for a request that free memory of its owner would serve which should stay whole; if
// that fails, the request takes this memory. Last resorts, for a request that would otherwise be refused; it may divide
// any memory from here on
//   6 the same as step 4, with events on the whole context
//   7 under `device`: all other streams' memory at once               8 give idle segments back, and grow
// Then, while the request may still wait (one `wait_deadline` for the whole request)
//   9 restart, if other threads changed anything since step 1 (arena_mutex::generation)
//   10 wait for a pending fence or another thread's driver call, and restart
//   11 call the callbacks, and restart                                12 refuse, with a report
// During an announced capture, steps 4, 6, 7 and all waits for fences are left out; for a request of a stream that
// captures, these steps always are. Any capture on this device skips step 8, also one of a blocking stream that only
// the driver knows of.
#pragma once

#include "segment_merger.hpp"

namespace gpumem {

class oom_ladder {
 public:
  oom_ladder(arena_state& state, fence_calls& fences, growth& grows, trimmer& trims, segment_merger& merges)
      : state_{state}, fences_{fences}, growth_{grows}, trimmer_{trims}, merger_{merges} {}

  /// Returns a live block, or `no_block`; `explain` (oom_diagnosis.hpp) then says why.
  block_index climb(arena_lock& lock, pending_request& request) GPUMEM_UNDER_LOCK;

 private:
  /// Steps 1 to 5.
  step_result look(arena_lock& lock, pending_request& request) GPUMEM_UNDER_LOCK;
  step_result grow_to_keep_whole(arena_lock& lock, pending_request& request) GPUMEM_UNDER_LOCK;
  step_result return_before_growth(arena_lock& lock, pending_request& request) GPUMEM_UNDER_LOCK;
  /// Steps 6 to 8.
  step_result last_resorts(arena_lock& lock, pending_request& request) GPUMEM_UNDER_LOCK;
  /// Step 10.
  step_result wait(arena_lock& lock, pending_request& request) GPUMEM_UNDER_LOCK;
  /// Whether waiting can help: false if only a free by the program can.
  [[nodiscard]] bool may_be_served(arena_lock& lock, const pending_request& request) GPUMEM_UNDER_LOCK;
  /// Step 4: one of the next three, as GPUMEM_STREAM_REUSE says (`device`, `poll`, `host`).
  step_result reuse_other_streams(arena_lock& lock, pending_request& request) GPUMEM_UNDER_LOCK;
  /// Returns a block that the stream may use after the waits on the device that this adds to `waits`.
  block_index take_ordered(const pending_request& request, device_waits& waits) GPUMEM_UNDER_LOCK;
  step_result reuse_what_is_done(arena_lock& lock, pending_request& request) GPUMEM_UNDER_LOCK;
  step_result reuse_after_wait(arena_lock& lock, pending_request& request) GPUMEM_UNDER_LOCK;
  /// Step 7.
  step_result join_all(arena_lock& lock, pending_request& request) GPUMEM_UNDER_LOCK;
  void take_over_from_others(const pending_request& request, device_waits& waits) GPUMEM_UNDER_LOCK;
  /// Step 8.
  step_result return_and_grow(arena_lock& lock, pending_request& request) GPUMEM_UNDER_LOCK;
  [[nodiscard]] owner_id best_other(const pending_request& request, block_index* found) const GPUMEM_UNDER_LOCK;
  [[nodiscard]] bool others_hold(const pending_request& request) const GPUMEM_UNDER_LOCK;
  /// Step 11: whether a callback says that it gave memory back.
  bool ask_callbacks(arena_lock& lock, std::uint64_t bytes) GPUMEM_UNDER_LOCK;

  arena_state& state_;
  fence_calls& fences_;
  growth& growth_;
  trimmer& trimmer_;
  segment_merger& merger_;
};

}  // namespace gpumem
