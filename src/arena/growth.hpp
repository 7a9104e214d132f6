// How an arena takes memory from the device: the policy says how much, the budget whether, the ticket who.
//
// One thread grows at a time and gives up the lock while the driver works; frees go on meanwhile. Whoever finds the
// ticket taken waits until it is returned, searches what the other thread brought, and only then grows itself. All host
// memory that a new segment needs is taken before the driver is asked, so that what the driver gave is never without a
// record.
#pragma once

#include "pager.hpp"

namespace gpumem {

class growth {
 public:
  growth(arena_state& state, pager& pages) : state_{state}, pager_{pages} {}

  /// What the policy takes ahead of demand has been asked for.
  [[nodiscard]] bool opened() const noexcept { return opened_; }
  /// Asks for it, or waits for whoever does.
  void open(arena_lock& lock, pending_request& request) GPUMEM_UNDER_LOCK;
  /// Takes memory and places the request in it. `nothing` where the limit or the device refuses; the request says
  /// which.
  step_result grow(arena_lock& lock, pending_request& request) GPUMEM_UNDER_LOCK;

 private:
  std::uint64_t add_segment(arena_lock& lock, const segment_request& ask, pending_request& request) GPUMEM_UNDER_LOCK;
  bool wait_for_ticket(arena_lock& lock, pending_request& request) GPUMEM_UNDER_LOCK;

  arena_state& state_;
  pager& pager_;
  bool opened_ = false;
};

}  // namespace gpumem
