// Blocks at places that are chosen elsewhere: by a plan, or where the fewest pages are missing.
#include <cassert>

#include "heap.hpp"

namespace gpumem {

block_index heap::carve_at(block_index from, std::uint64_t begin, std::uint64_t bytes, owner_id o) {
  const std::uint64_t end = begin + bytes;
  assert(blocks_[from].begin <= begin && blocks_[from].begin + blocks_[from].bytes > begin);
  blocks_.make_room(2);  // what is left over below and above
  const auto take = [&](block_index i) {
    // The part of block i that lies within, out of every index; the rest stays where it was.
    assert(joins(i, o, true));
    const std::uint64_t low = blocks_[i].begin;
    const std::uint64_t high = low + blocks_[i].bytes;
    const std::uint64_t cut_begin = low > begin ? low : begin;
    const std::uint64_t cut_end = high < end ? high : end;
    const block_index order_before = blocks_[i].in_index.older;
    leave(i);
    const block_index cut = cut_out(i, cut_begin, cut_end - cut_begin);
    if (high != cut_end) enter(blocks_[cut].above, order_before);
    if (low != cut_begin) enter(blocks_[cut].below, order_before);
    return cut;
  };
  const block_index taken = take(from);
  while (blocks_[taken].begin + blocks_[taken].bytes < end) {
    static_cast<void>(take(blocks_[taken].above));
    merge_above(taken);
  }
  block& b = blocks_[taken];
  b.state = block_state::live;
  b.owner = o;
  b.in_use = use_record{};
  totals_.live_bytes += b.bytes;
  ++totals_.live_blocks;
  return taken;
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
