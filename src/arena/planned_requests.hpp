// Following a plan: a request that the plan expects gets its place in the plan's segment, any other the best fit beside
// it.
//
// Where the places are is placement/planned's; this is what a place needs first: fences, and streams that are ordered
// behind each other. What departs from the plan is of class 1, so that it does not stand where a planned block will go.
// It is let into class 0 when the plan was not followed for long, or when nothing else is left. No thread caches: every
// request has to be seen in its order.
#pragma once

#include "oom_ladder.hpp"
#include "planned.hpp"

namespace gpumem {

class planned_requests {
 public:
  planned_requests(arena_state& in, fence_calls& fences, growth& grows, oom_ladder& ladder)
      : in_{in}, fences_{fences}, growth_{grows}, ladder_{ladder}, places_{in.config.plan} {}

  [[nodiscard]] bool follows() const noexcept { return places_.follows(); }
  /// The block at the planned place, live, or none where the request departs from the plan or the place is not free.
  block_index place(arena_lock& lock, pending_request& w) GPUMEM_UNDER_LOCK;
  /// As `oom_ladder::climb`, for what the plan did not place.
  block_index climb(arena_lock& lock, pending_request& w) GPUMEM_UNDER_LOCK;
  /// A block is free, in the order of `o`.
  void freed(block_index i, owner_id o) GPUMEM_UNDER_LOCK {
    if (places_.gone(i)) promised_ = in_.streams[o].promised = true;
  }
  [[nodiscard]] std::uint64_t metadata_bytes() const noexcept { return places_.metadata_bytes(); }

 private:
  [[nodiscard]] block_index free_at(arena_lock& lock, const pending_request& w, const planned::place& at,
                                    owner_id* in_the_way) GPUMEM_UNDER_LOCK;
  [[nodiscard]] block_index free_when_done(arena_lock& lock, pending_request& w,
                                           const planned::place& at) GPUMEM_UNDER_LOCK;
  void fence_promised(arena_lock& lock) GPUMEM_UNDER_LOCK;

  arena_state& in_;
  fence_calls& fences_;
  growth& growth_;
  oom_ladder& ladder_;
  planned places_;
  bool promised_ = false;  // a slot's `promised` is set
};

}  // namespace gpumem
