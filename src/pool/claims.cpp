#include "claims.hpp"

#include <cassert>
#include <utility>

namespace gpumem {

claim_table::claim_table(std::uint32_t places)
    : mask_{(places - 1) * 2}, spread_{spread_over(places)}, claims_{places}, blocks_{places} {}

// A place that was taken out is as good as one that was never used: nothing in it is looked for.
claim_index claim_table::insert(address at, block_index block, claim_word w) noexcept {
  assert(has_room());
  claim_index i = home_of(at);
  claim_table& claims = *this;
  address begin = claims[i].begin.load(std::memory_order_relaxed);
  while (begin > taken_out) {
    i = next(i);
    begin = claims[i].begin.load(std::memory_order_relaxed);
  }
  used_ += begin == 0 ? 1U : 0U;
  blocks_[i / 2] = block;
  claims[i].begin.store(at, std::memory_order_relaxed);
  claims[i].write(w);
  ++count_;
  return i;
}

// A search goes on behind it, but at the end of a run, where nothing is behind it.
void claim_table::erase(claim_index i) noexcept {
  claim_table& claims = *this;
  claims[i].write(claim_word{});
  --count_;
  if (claims[next(i)].begin.load(std::memory_order_relaxed) != 0) {
    claims[i].begin.store(taken_out, std::memory_order_relaxed);
    return;
  }
  do {
    claims[i].begin.store(0, std::memory_order_relaxed);
    --used_;
    i = (i - 2) & mask_;
  } while (claims[i].begin.load(std::memory_order_relaxed) == taken_out);
}

void claim_table::grow() {
  // Else it is full of what was taken out, and once more of the same size has room for a quarter of it.
  const bool half_held = (count_ + 1) * 2 > places();
  claim_table made{half_held ? places() * 2 : places()};
  for (std::uint32_t place = 0; place < places(); ++place) {
    const claim& c = claims_[place];
    const claim_word w = c.read();
    if (w.held_by() != holder::nobody) made.insert(c.begin.load(std::memory_order_relaxed), blocks_[place], w);
  }
  *this = std::move(made);
}

}  // namespace gpumem
