// Follows a plan: a request that the plan expects gets its place in the plan's segment, any other request the best fit.
//
// plan/plan_cursor knows the places; this class prepares them: it records fences and orders streams. Requests that
// depart from the plan get class 1, which keeps planned places free. They may use class 0 once the plan has not been
// followed for long, or when nothing else is left. A pool with a plan has no thread caches, because the plan must see
// every request in order.
#pragma once

#include "oom_ladder.hpp"
#include "plan_cursor.hpp"

namespace gpumem {

class plan_executor {
 public:
  plan_executor(arena_state& state, fence_calls& fences, growth& grows, oom_ladder& ladder)
      : state_{state}, fences_{fences}, growth_{grows}, ladder_{ladder}, places_{state.config.plan} {}

  [[nodiscard]] bool follows() const noexcept { return places_.follows(); }
  /// Allocates the block at its planned place; `no_block` if the request departs from the plan or the place is taken.
  block_index place(arena_lock& lock, pending_request& request) GPUMEM_UNDER_LOCK;
  /// Serves a request that the plan did not place, as `oom_ladder::climb` does.
  block_index climb(arena_lock& lock, pending_request& request) GPUMEM_UNDER_LOCK;
  /// Tells the plan that a block was freed in the order of `owner`; notes the owner if the plan gives that memory to
  /// another stream next.
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
  bool needed_by_plan_ = false;  // some slot has `needed_by_plan` set
};

}  // namespace gpumem
