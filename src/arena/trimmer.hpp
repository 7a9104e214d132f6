// Giving memory back to the device: on request (`trim`, a lower limit) or, where the policy says so, under pressure.
//
// Only wholly idle segments go, or idle pages, and only after every fence before them is done: the driver's free may
// wait for the device, its unmap does not. The lock is given up for each driver call. Meanwhile the bytes are on their
// way: the budget still counts them, and a request that needs them waits for the end of the call.
#pragma once

#include "pager.hpp"

namespace gpumem {

class trimmer {
 public:
  trimmer(arena_state& state, fence_calls& fences, pager& pages) : state_{state}, fences_{fences}, pager_{pages} {}

  /// Returns the largest idle segments first until `bytes` are returned; the bytes that went.
  std::uint64_t return_idle(arena_lock& lock, std::uint64_t bytes, const wait_deadline& deadline) GPUMEM_UNDER_LOCK;
  /// The same, as far as the policy allows, and after a wait for fences if need be; says of every free byte that is
  /// left why it is.
  trim_result trim(arena_lock& lock, std::uint64_t bytes) GPUMEM_UNDER_LOCK;

 private:
  void explain_rest(bool allowed, bool withheld, trim_result* trimmed) const GPUMEM_UNDER_LOCK;
  [[nodiscard]] std::uint64_t idle_pages_of(const heap_segment& segment) const GPUMEM_UNDER_LOCK;

  arena_state& state_;
  fence_calls& fences_;
  pager& pager_;
};

}  // namespace gpumem
