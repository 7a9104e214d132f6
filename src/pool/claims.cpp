#include "claims.hpp"

#include <cassert>
#include <utility>

namespace gpumem {

claim_table::claim_table(std::uint32_t places) : mask_{places - 1}, claims_{places}, blocks_{places} {}

// A place that was taken out is as good as one that was never used: nothing in it is looked for.
claim_index claim_table::insert(address at, block_index block, claim_word w) noexcept {
  assert(has_room());
  claim_index i = home_of(at);
  address begin = claims_[i].begin.load(std::memory_order_relaxed);
  while (begin > taken_out) {
    i = next(i);
    begin = claims_[i].begin.load(std::memory_order_relaxed);
  }
  used_ += begin == 0 ? 1U : 0U;
  blocks_[i] = block;
  claims_[i].begin.store(at, std::memory_order_relaxed);
  claims_[i].write(w);
  ++count_;
  return i;
}

// A search goes on behind it, but at the end of a run, where nothing is behind it.
void claim_table::erase(claim_index i) noexcept {
  claims_[i].write(claim_word{});
  --count_;
  if (claims_[next(i)].begin.load(std::memory_order_relaxed) != 0) {
    claims_[i].begin.store(taken_out, std::memory_order_relaxed);
    return;
  }
  do {
    claims_[i].begin.store(0, std::memory_order_relaxed);
    --used_;
    i = (i - 1) & mask_;
  } while (claims_[i].begin.load(std::memory_order_relaxed) == taken_out);
}

void claim_table::grow() {
  const std::uint32_t places = mask_ + 1;
  // Else it is full of what was taken out, and once more of the same size has room for a quarter of it.
  const bool half_held = (count_ + 1) * 2 > places;
  claim_table made{half_held ? places * 2 : places};
  for (claim_index i = 0; i < places; ++i) {
    const claim_word w = claims_[i].read();
    if (w.held_by() != holder::nobody) made.insert(claims_[i].begin.load(std::memory_order_relaxed), blocks_[i], w);
  }
  *this = std::move(made);
}

}  // namespace gpumem
