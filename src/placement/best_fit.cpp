#include "best_fit.hpp"

namespace gpumem {

free_place best_fit::find(const heap& in, const placement_request& r) const noexcept {
  const block_index from = takes_lowest(r.bytes) ? in.lowest_fit(r.klass, r.owner, r.bytes, r.alignment)
                                                 : in.best_fit(r.klass, r.owner, true, r.bytes, r.alignment);
  return {from, from != no_block && takes_upper_end(in, r.bytes, r.alignment)};
}

}  // namespace gpumem
