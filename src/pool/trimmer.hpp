// Gives memory back to the device: on request (`trim`, a lower limit) or, if the policy says so, under pressure.
//
// Returns only wholly idle segments or idle pages, after every fence behind their frees is done: the driver's free may
// wait for the device, its unmap does not. Releases the lock for each driver call. Until the call ends, the budget
// still counts the bytes, and a request that needs them waits.
#pragma once

#include "pager.hpp"

namespace gpumem {

class trimmer {
 public:
  trimmer(arena_state& state, fence_calls& fences, pager& pages) : state_{state}, fences_{fences}, pager_{pages} {}

  /// Gives idle segments back, largest first, or idle pages, until `bytes` went. Returns the bytes that went.
  std::uint64_t return_idle(arena_lock& lock, std::uint64_t bytes, const wait_deadline& deadline) GPUMEM_UNDER_LOCK;
  /// The same, as far as the policy allows, and with waits for fences if necessary. Reports why each remaining free
  /// byte stays.
  trim_result trim(arena_lock& lock, std::uint64_t bytes) GPUMEM_UNDER_LOCK;

 private:
  void explain_rest(bool allowed, bool withheld, trim_result* trimmed) const GPUMEM_UNDER_LOCK;
  [[nodiscard]] std::uint64_t idle_pages_of(const heap_segment& segment) const GPUMEM_UNDER_LOCK;

  arena_state& state_;
  fence_calls& fences_;
  pager& pager_;
};

}  // namespace gpumem
