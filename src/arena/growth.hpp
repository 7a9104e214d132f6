// How an arena takes memory from the device: the policy says how much, the budget whether, the ticket who.
//
// One thread grows at a time and gives up the lock while the driver works; frees go on meanwhile. Whoever finds the
// ticket taken waits until it is returned and then searches again before it grows itself. All host memory that a new
// segment needs is taken before the driver is asked, so that what the driver gave is never without a record.
#pragma once

#include "pager.hpp"

namespace gpumem {

class growth {
 public:
  growth(arena_state& in, pager& pages) : in_{in}, pager_{pages} {}

  /// What the policy takes ahead of demand has been asked for.
  [[nodiscard]] bool opened() const noexcept { return opened_; }
  /// Asks for it, or waits for whoever does.
  void open(arena_lock& lock, pending_request& w) GPUMEM_UNDER_LOCK;
  grown grow(arena_lock& lock, pending_request& w) GPUMEM_UNDER_LOCK;

 private:
  std::uint64_t add_segment(arena_lock& lock, const segment_request& ask, pending_request& w) GPUMEM_UNDER_LOCK;

  arena_state& in_;
  pager& pager_;
  bool opened_ = false;
};

}  // namespace gpumem
