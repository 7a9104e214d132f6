#include "best_fit.hpp"

#include <utility>

#include "bits.hpp"

namespace gpumem {

block_index best_fit::take(heap& pool_heap, const placement_request& request) const {
  const auto [owner, segment_class, bytes, alignment, idle, may_divide] = request;
  const bool idle_too = idle != idle_memory::none;
  const bool lowest = bytes >= lowest_fit_bytes && idle_too;
  // Idle memory that joins the owner's own makes larger holes, which helps large requests most.
  if (lowest && idle == idle_memory::joined) pool_heap.absorb_idle(owner);
  const free_lists& free = pool_heap.free_blocks();
  const bool own_first = idle == idle_memory::last;
  block_index found = lowest ? free.lowest_fit(segment_class, owner, bytes, alignment, own_first)
                             : free.best_fit(segment_class, owner, idle_too, bytes, alignment, own_first);
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

// The best fit but `found`, which should stay whole. That is taken all the same if the best fit should stay whole, too:
// another segment, of its size or more, which is whole. Parts of such segments are passed over.
block_index best_fit::not_in_the_way(const heap& pool_heap, const placement_request& request,
                                     block_index found) noexcept {
  const auto segment_bytes = [&](const block& part) { return pool_heap.segments()[part.segment].bytes; };
  const std::uint64_t found_bytes = segment_bytes(pool_heap.at(found));
  const auto decides = [&](block_index index) {
    const block& b = pool_heap.at(index);
    if (index == found || round_up(b.begin, request.alignment) + request.bytes > b.begin + b.bytes) return false;
    return !pool_heap.in_the_way(index, request.bytes) || (b.bytes == segment_bytes(b) && b.bytes >= found_bytes);
  };
  const auto first_of = [&](owner_id owner) {
    return pool_heap.free_blocks().first_where(request.segment_class, owner, request.bytes, decides);
  };
  block_index first = first_of(request.owner);
  if (request.owner != idle_owner && (first == no_block || request.idle != idle_memory::last)) {
    const block_index idle = first_of(idle_owner);
    const auto order = [&](block_index index) {
      return index != no_block ? std::pair{pool_heap.at(index).bytes, pool_heap.at(index).begin}
                               : std::pair{UINT64_MAX, UINT64_MAX};
    };
    if (order(idle) < order(first)) first = idle;
  }
  return first != no_block && pool_heap.in_the_way(first, request.bytes) ? found : first;
}

}  // namespace gpumem
