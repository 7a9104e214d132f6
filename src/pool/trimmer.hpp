// Gives memory back to the device: on request (`trim`, a lower limit) or, if the policy says so, under pressure.
//
// Returns only wholly idle segments or idle pages, after every fence behind their frees is done: the driver's free may
// wait for the device, its unmap does not. Releases the lock for each driver call. Until the call ends, the budget
// still counts the bytes, and a request that needs them waits.
#pragma once

#include <optional>

#include "pager.hpp"

namespace gpumem {

class trimmer {
 public:
  trimmer(arena_state& state, fence_calls& fences, pager& pages) : state_{state}, fences_{fences}, pager_{pages} {}

  /// Gives idle segments back, largest first, or idle pages, until `bytes` went. Returns the bytes that went.
  std::uint64_t return_idle(arena_lock& lock, std::uint64_t bytes, const wait_deadline& deadline) GPUMEM_UNDER_LOCK;
  /// Whether the policy would give a segment back before the pool grows by `grow_bytes`, once its fences are done.
  [[nodiscard]] bool would_return(std::uint64_t grow_bytes) const GPUMEM_UNDER_LOCK;
  /// Returns an idle segment that the policy gives back for a growth by `grow_bytes`, and then every other one that it
  /// would give back for any growth. Returns the bytes that went.
  std::uint64_t return_before_growth(arena_lock& lock, std::uint64_t grow_bytes) GPUMEM_UNDER_LOCK;
  /// The same as `return_idle`, as far as the policy allows, and with waits for fences if necessary. Reports why each
  /// remaining free byte stays.
  trim_result trim(arena_lock& lock, std::uint64_t bytes) GPUMEM_UNDER_LOCK;

  struct idle_segments {
    std::size_t count = 0;
    std::uint64_t bytes = 0;
  };
  /// The segments that could go back now.
  [[nodiscard]] idle_segments idle() const GPUMEM_UNDER_LOCK;

 private:
  template <typename Condition>
  [[nodiscard]] std::optional<segment_index> largest_where(const Condition& holds) const GPUMEM_UNDER_LOCK;
  [[nodiscard]] std::optional<segment_index> next_before_growth(std::uint64_t grow_bytes,
                                                                bool is_idle) const GPUMEM_UNDER_LOCK;
  std::uint64_t return_segment(arena_lock& lock, segment_index segment) GPUMEM_UNDER_LOCK;
  void explain_rest(bool allowed, bool withheld, trim_result* trimmed) const GPUMEM_UNDER_LOCK;
  [[nodiscard]] std::uint64_t idle_pages_of(const heap_segment& segment) const GPUMEM_UNDER_LOCK;

  arena_state& state_;
  fence_calls& fences_;
  pager& pager_;
};

}  // namespace gpumem
