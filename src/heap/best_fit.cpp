#include "best_fit.hpp"

#include <tuple>

#include "bits.hpp"

namespace gpumem {

block_index best_fit::take(heap& pool_heap, const placement_request& request) const {
  const auto [owner, segment_class, bytes, alignment, idle, may_divide] = request;
  const bool lowest = bytes >= lowest_fit_bytes;
  // Idle memory that joins the owner's own makes larger holes, which helps large requests most.
  if (lowest && idle == idle_memory::joined) pool_heap.absorb_idle(owner);
  const free_lists& free = pool_heap.free_blocks();
  const bool own_first = idle == idle_memory::last;
  block_index found = lowest ? free.lowest_fit(segment_class, owner, bytes, alignment, own_first)
                             : free.best_fit(segment_class, owner, true, bytes, alignment, own_first);
  if (keeps_segments_whole && !may_divide && found != no_block && pool_heap.in_the_way(found, bytes)) {
    found = not_in_the_way(pool_heap, request, found);
  }
  if (found == no_block) return no_block;
  // At the upper end of their blocks, small requests share fewer pages with large ones.
  const bool upper_end =
      bytes < upper_end_bytes && alignment == 512 && pool_heap.totals().segment_bytes < upper_end_pool_bytes;
  if (!upper_end) return pool_heap.carve(found, bytes, alignment);
  const block& b = pool_heap.at(found);
  return pool_heap.carve_at(found, b.begin + b.bytes - bytes, bytes, owner);
}

// The best fit among the blocks of segments that need not stay whole. If there is none: `found`, which should stay
// whole, if another such segment of its size or more is whole.
block_index best_fit::not_in_the_way(const heap& pool_heap, const placement_request& request,
                                     block_index found) noexcept {
  const auto segment_bytes = [&](const block& part) { return pool_heap.segments()[part.segment].bytes; };
  const std::uint64_t found_bytes = segment_bytes(pool_heap.at(found));
  block_index best = no_block;
  bool another_is_whole = false;
  const auto consider = [&](block_index index) {
    const block& b = pool_heap.at(index);
    if (index == found || b.segment_class != request.segment_class) return;
    if (pool_heap.in_the_way(index, request.bytes)) {
      another_is_whole = another_is_whole || (b.bytes >= found_bytes && b.bytes == segment_bytes(b));
    } else if (round_up(b.begin, request.alignment) + request.bytes <= b.begin + b.bytes) {
      const block* const least = best != no_block ? &pool_heap.at(best) : nullptr;
      if (least == nullptr || std::tie(b.bytes, b.begin) < std::tie(least->bytes, least->begin)) best = index;
    }
  };
  const free_lists& free = pool_heap.free_blocks();
  free.visit(request.owner, pool_heap.at(found).bytes, consider);
  const bool is_served = request.idle == idle_memory::last && best != no_block;
  if (request.owner != idle_owner && !is_served) free.visit(idle_owner, pool_heap.at(found).bytes, consider);
  return best == no_block && another_is_whole ? found : best;
}

}  // namespace gpumem
