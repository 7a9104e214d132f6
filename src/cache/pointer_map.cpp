#include "pointer_map.hpp"

#include <cassert>
#include <utility>

namespace gpumem {

pointer_map::pointer_map(std::uint32_t places)
    : mask_{places - 1},
      spread_{spread_over(places)},
      pointers_{std::make_unique<pointer_slot[]>(places)},
      blocks_{std::make_unique<block_index[]>(places)} {}

// An entry that was taken out may be reused like one that was never used: no search looks for it.
slot_index pointer_map::insert(address pointer, block_index block, owner_word word) noexcept {
  assert(has_room());
  slot_index i = home_of(pointer);
  while (pointers_[i].begin.load(std::memory_order_relaxed) > taken_out) i = next(i);
  used_ += pointers_[i].begin.load(std::memory_order_relaxed) == 0 ? 1U : 0U;
  blocks_[i] = block;
  pointers_[i].begin.store(pointer, std::memory_order_relaxed);
  pointers_[i].write(word);
  ++count_;
  return i;
}

// Searches continue past the erased entry, except at the end of a run, where nothing follows it.
void pointer_map::erase(slot_index slot) noexcept {
  pointers_[slot].write(owner_word{});
  --count_;
  if (pointers_[next(slot)].begin.load(std::memory_order_relaxed) != 0) {
    pointers_[slot].begin.store(taken_out, std::memory_order_relaxed);
    return;
  }
  do {
    pointers_[slot].begin.store(0, std::memory_order_relaxed);
    --used_;
    slot = (slot - 1) & mask_;
  } while (pointers_[slot].begin.load(std::memory_order_relaxed) == taken_out);
}

void pointer_map::grow() {
  // Otherwise taken-out entries fill the table; a table of the same size then has room for at least a quarter more.
  const bool half_held = (count_ + 1) * 2 > places();
  pointer_map made{half_held ? places() * 2 : places()};
  for (std::uint32_t place = 0; place < places(); ++place) {
    const pointer_slot& c = pointers_[place];
    const owner_word w = c.read();
    if (w.held_by() != holder::nobody) made.insert(c.begin.load(std::memory_order_relaxed), blocks_[place], w);
  }
  *this = std::move(made);
}

}  // namespace gpumem
