// Takes memory page by page: maps the pages that are missing behind a request, new or moved from free memory.
//
// `cheapest_place` (page_place.hpp) selects the place, the policy limits new memory, and `page_manager` has the plan
// and the records. A thread that changes mappings holds the growth ticket. Nothing is unmapped during a capture.
#pragma once

#include "fence_calls.hpp"

namespace gpumem {

class pager {
 public:
  pager(arena_state& state, fence_calls& fences) : state_{state}, fences_{fences} {}

  /// Creates or moves the pages that are missing behind the request, and places it there. Requires the ticket. Waits
  /// for no work.
  step_result page_in(arena_lock& lock, pending_request& request) GPUMEM_UNDER_LOCK;

  /// Returns idle runs to the device, longest stretches first, until `bytes` are returned. Returns the bytes that went.
  /// Waits for the ticket.
  std::uint64_t return_pages(arena_lock& lock, std::uint64_t bytes, const wait_deadline& deadline) GPUMEM_UNDER_LOCK;

 private:
  void note_refusal(pending_request& request, const remap_batch& step,
                    page_manager::paging_limits* may) GPUMEM_UNDER_LOCK;
  step_result note_impossible(pending_request& request, std::uint64_t missing_bytes) GPUMEM_UNDER_LOCK;
  [[nodiscard]] page_manager::verdict plan(const pending_request& request, const page_place& place,
                                           page_manager::paging_limits may, remap_batch* step) const GPUMEM_UNDER_LOCK;
  [[nodiscard]] bool prefers_other_range(const pending_request& request, const page_place& place,
                                         bool may_unmap) const GPUMEM_UNDER_LOCK;
  void give_back(arena_lock& lock, std::uint64_t bytes, page_span keep,
                 page_manager::paging_limits* may) GPUMEM_UNDER_LOCK;
  step_result fence_before_moves(arena_lock& lock, const pending_request& request) GPUMEM_UNDER_LOCK;
  bool add_range(arena_lock& lock, pending_request& request) GPUMEM_UNDER_LOCK;
  status execute(arena_lock& lock, remap_batch& step, reservation* reserved) GPUMEM_UNDER_LOCK;
  bool undo_stranded(arena_lock& lock, bool may_unmap) GPUMEM_UNDER_LOCK;
  void unmap_vacated(arena_lock& lock) GPUMEM_UNDER_LOCK;
  std::uint64_t return_stretches(arena_lock& lock, std::uint64_t bytes, page_span keep) GPUMEM_UNDER_LOCK;

  arena_state& state_;
  fence_calls& fences_;
};

}  // namespace gpumem
