// Blocks at places that are chosen elsewhere: by a plan.
#include <cassert>

#include "heap.hpp"

namespace gpumem {

block_index heap::carve_from(block_index from, std::uint64_t begin, std::uint64_t bytes) {
  assert(blocks_[from].state == block_state::free && blocks_[from].begin <= begin);
  assert(begin + bytes <= blocks_[from].begin + blocks_[from].bytes);
  if (blocks_[from].begin == begin) return carve(from, bytes, 1);
  // In two first, both with the place in the order of epochs that the whole had.
  const block_index upper = blocks_.take();
  block& low = blocks_[from];
  block& up = blocks_[upper];
  const block_index order_before = low.in_index.older;
  leave(from);
  up.begin = begin;
  up.bytes = low.begin + low.bytes - begin;
  up.segment = low.segment;
  up.klass = low.klass;
  up.owner = low.owner;
  up.state = block_state::free;
  up.in_index.epoch = low.in_index.epoch;
  up.below = from;
  up.above = low.above;
  if (up.above != no_block) blocks_[up.above].below = upper;
  low.above = upper;
  low.bytes = begin - low.begin;
  enter(from, order_before);
  enter(upper, order_before);
  return carve(upper, bytes, 1);
}

block_index heap::unite(block_index first, std::uint64_t end, owner_id o, std::uint32_t epoch) {
  // Whatever is merged, the lowest record is the one that stays.
  block_index lowest = first;
  while (joins(blocks_[lowest].below, o, true)) lowest = blocks_[lowest].below;
  for (block_index next = first;; next = blocks_[lowest].above) {
    assert(blocks_[next].state == block_state::free);
    leave(next);
    make_free(next, o, epoch, true);
    if (blocks_[lowest].begin + blocks_[lowest].bytes >= end) return lowest;
  }
}

}  // namespace gpumem
