#include "best_fit.hpp"

namespace gpumem {

block_index best_fit::take(heap& pool_heap, const placement_request& request) const {
  const auto [owner, segment_class, bytes, alignment, idle] = request;
  const bool lowest = bytes >= lowest_fit_bytes;
  // Idle memory that joins the owner's own makes larger holes, which helps large requests most.
  if (lowest && idle == idle_memory::joined) pool_heap.absorb_idle(owner);
  const free_lists& free = pool_heap.free_blocks();
  const bool own_first = idle == idle_memory::last;
  const block_index found = lowest ? free.lowest_fit(segment_class, owner, bytes, alignment, own_first)
                                   : free.best_fit(segment_class, owner, true, bytes, alignment, own_first);
  if (found == no_block) return no_block;
  // At the upper end of their blocks, small requests share fewer pages with large ones.
  const bool upper_end =
      bytes < upper_end_bytes && alignment == 512 && pool_heap.totals().segment_bytes < upper_end_pool_bytes;
  if (!upper_end) return pool_heap.carve(found, bytes, alignment);
  const block& b = pool_heap.at(found);
  return pool_heap.carve_at(found, b.begin + b.bytes - bytes, bytes, owner);
}

}  // namespace gpumem
