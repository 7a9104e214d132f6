// How an arena takes memory from the device: the policy sets the size, the budget allows it, the ticket orders threads.
//
// One thread grows at a time and releases the lock while the driver works; frees continue. A thread that finds the
// ticket taken waits for it, searches the memory that the other thread brought, and only then grows. All host memory
// for a new segment is taken before the driver call, so memory from the driver always has a record.
#pragma once

#include "pager.hpp"

namespace gpumem {

class growth {
 public:
  growth(arena_state& state, pager& pages) : state_{state}, pager_{pages} {}

  /// True once the pool has asked for the memory that the policy wants ahead of demand.
  [[nodiscard]] bool opened() const noexcept { return opened_; }
  /// Asks for that memory, or waits for the thread that does.
  void open(arena_lock& lock, pending_request& request) GPUMEM_UNDER_LOCK;
  /// Takes memory and places the request in it. `nothing` if the limit or the device refuses; the request notes which.
  step_result grow(arena_lock& lock, pending_request& request) GPUMEM_UNDER_LOCK;
  /// Takes a segment of that size for all requests, or none. Requires the ticket.
  void take(arena_lock& lock, std::uint64_t bytes) GPUMEM_UNDER_LOCK;

 private:
  std::uint64_t add_segment(arena_lock& lock, const segment_request& ask, pending_request& request) GPUMEM_UNDER_LOCK;
  bool wait_for_ticket(arena_lock& lock, pending_request& request) GPUMEM_UNDER_LOCK;

  arena_state& state_;
  pager& pager_;
  bool opened_ = false;
};

}  // namespace gpumem
