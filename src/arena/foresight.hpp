// How an arena acts on what lookahead names: it waits for fences, moves pages, and places the request there.
//
// Which place is better is placement/lookahead's; this is what has to be done for it, and whether a request may be
// looked at: not while a capture is under way, and not with an alignment of its own.
#pragma once

#include "pager.hpp"

namespace gpumem {

class foresight {
 public:
  foresight(arena_state& in, fence_calls& fences, pager& pages) : in_{in}, fences_{fences}, pager_{pages} {}

  /// Places a large request: at the usual place (`arena_state::search`), or at the one after which fewer pages move,
  /// even if that place lacks pages, which then are paged in.
  [[nodiscard]] block_index search(arena_lock& lock, pending_request& w) GPUMEM_UNDER_LOCK;
  /// Requires the ticket. True if it placed the request (`w.placed`). Otherwise nothing changed, except that fences may
  /// have been waited for.
  bool page_in(arena_lock& lock, pending_request& w) GPUMEM_UNDER_LOCK;

 private:
  [[nodiscard]] std::optional<page_place> better_place(const pending_request& w, address usual,
                                                       bool at_once) GPUMEM_UNDER_LOCK;
  [[nodiscard]] std::vector<bool> owners_that_serve(owner_id o, bool all) const GPUMEM_UNDER_LOCK;
  [[nodiscard]] bool is_worth(const pending_request& w) const noexcept GPUMEM_UNDER_LOCK;
  [[nodiscard]] bool free_for(const pending_request& w, const page_place& at) const GPUMEM_UNDER_LOCK;
  [[nodiscard]] block_index carve(const pending_request& w, const page_place& at) GPUMEM_UNDER_LOCK;

  arena_state& in_;
  fence_calls& fences_;
  pager& pager_;
};

}  // namespace gpumem
