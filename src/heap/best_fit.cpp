#include "best_fit.hpp"

namespace gpumem {

free_place best_fit::find(const heap& pool_heap, const placement_request& request) const noexcept {
  const block_index found =
      takes_lowest(request.bytes)
          ? pool_heap.lowest_fit(request.segment_class, request.owner, request.bytes, request.alignment)
          : pool_heap.best_fit(request.segment_class, request.owner, true, request.bytes, request.alignment);
  return {found, found != no_block && takes_upper_end(pool_heap, request.bytes, request.alignment)};
}

}  // namespace gpumem
