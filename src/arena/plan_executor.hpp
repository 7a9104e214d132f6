// Following a plan: a request that the plan expects gets its place in the plan's segment, any other the best fit beside
// it.
//
// Where the places are is placement/planned's; this is what a place needs first: fences, and streams that are ordered
// behind each other. What departs from the plan is of class 1, so that it does not stand where a planned block will go.
// It is let into class 0 when the plan was not followed for long, or when nothing else is left. No thread caches: every
// request has to be seen in its order.
#pragma once

#include "oom_ladder.hpp"
#include "plan_cursor.hpp"

namespace gpumem {

class plan_executor {
 public:
  plan_executor(arena_state& state, fence_calls& fences, growth& grows, oom_ladder& ladder)
      : state_{state}, fences_{fences}, growth_{grows}, ladder_{ladder}, places_{state.config.plan} {}

  [[nodiscard]] bool follows() const noexcept { return places_.follows(); }
  /// The block at the planned place, live, or none where the request departs from the plan or the place is not free.
  block_index place(arena_lock& lock, pending_request& request) GPUMEM_UNDER_LOCK;
  /// As `oom_ladder::climb`, for what the plan did not place.
  block_index climb(arena_lock& lock, pending_request& request) GPUMEM_UNDER_LOCK;
  /// A block is free, in the order of `owner`.
  void freed(block_index index, owner_id owner) GPUMEM_UNDER_LOCK {
    if (places_.ended(index)) needed_by_plan_ = state_.streams[owner].needed_by_plan = true;
  }
  [[nodiscard]] std::uint64_t metadata_bytes() const noexcept { return places_.metadata_bytes(); }

 private:
  [[nodiscard]] block_index free_at(arena_lock& lock, const pending_request& request, const plan_cursor::place& place,
                                    owner_id* in_the_way) GPUMEM_UNDER_LOCK;
  [[nodiscard]] block_index free_when_done(arena_lock& lock, pending_request& request,
                                           const plan_cursor::place& place) GPUMEM_UNDER_LOCK;
  void fence_needed_by_plan(arena_lock& lock) GPUMEM_UNDER_LOCK;

  arena_state& state_;
  fence_calls& fences_;
  growth& growth_;
  oom_ladder& ladder_;
  plan_cursor places_;
  bool needed_by_plan_ = false;  // a slot's `promised` is set
};

}  // namespace gpumem
