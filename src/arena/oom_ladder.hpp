// What happens when nothing that is free fits: one step after another, each followed by a new search.
//
// 1 fences that are done by now   2 all that threads' caches hold   3 idle neighbours merged
// 4 another stream's memory, behind a fence                     5 grow, as the policy says
// 6 all other streams' memory     7 give idle segments back and grow
// 8 wait for every fence, search, and 7 again                   9 from the top, where others freed memory meanwhile
// 10 the callbacks, and from the top                            11 fail, with a report
// Steps 4, 6 and 8 wait for nothing while a capture is under way. The lock is given up for every driver call that can
// block; so what a step found before it gave the lock up, it searches again afterwards.
#pragma once

#include <vector>

#include "growth.hpp"
#include "trimmer.hpp"

namespace gpumem {

class oom_ladder {
 public:
  oom_ladder(arena_state& in, fence_calls& fences, growth& grows, trimmer& trims)
      : in_{in}, fences_{fences}, growth_{grows}, trimmer_{trims} {}

  /// A live block for the request, or `no_block`: then `cause_of` says why.
  block_index climb(arena_lock& lock, pending_request& w) GPUMEM_UNDER_LOCK;
  [[nodiscard]] oom_cause cause_of(const pending_request& w) const GPUMEM_UNDER_LOCK;
  void add_callback(const oom_callback& callback) { callbacks_.push_back(callback); }

 private:
  block_index reuse_other_streams(arena_lock& lock, const pending_request& w) GPUMEM_UNDER_LOCK;
  block_index take_ordered(const pending_request& w, device_waits& waits) GPUMEM_UNDER_LOCK;
  block_index reuse_what_is_done(arena_lock& lock, const pending_request& w) GPUMEM_UNDER_LOCK;
  block_index reuse_after_wait(arena_lock& lock, const pending_request& w) GPUMEM_UNDER_LOCK;
  block_index join_all(arena_lock& lock, const pending_request& w) GPUMEM_UNDER_LOCK;
  void take_over_from_others(const pending_request& w, device_waits& waits) GPUMEM_UNDER_LOCK;
  block_index return_and_grow(arena_lock& lock, pending_request& w) GPUMEM_UNDER_LOCK;
  [[nodiscard]] owner_id best_other(const pending_request& w, block_index* found) const GPUMEM_UNDER_LOCK;
  [[nodiscard]] bool others_hold(const pending_request& w) const GPUMEM_UNDER_LOCK;
  bool ask_callbacks(arena_lock& lock, std::uint64_t bytes) GPUMEM_UNDER_LOCK;

  arena_state& in_;
  fence_calls& fences_;
  growth& growth_;
  trimmer& trimmer_;
  std::vector<oom_callback> callbacks_;
};

}  // namespace gpumem
