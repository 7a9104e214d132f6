// Blocks at places that are chosen elsewhere: by a plan, or where the fewest pages are missing.
#include <algorithm>
#include <cassert>

#include "heap.hpp"

namespace gpumem {

block_index heap::carve_at(block_index from, std::uint64_t begin, std::uint64_t bytes, owner_id o) {
  const std::uint64_t end = begin + bytes;
  assert(blocks_[from].begin <= begin && blocks_[from].begin + blocks_[from].bytes > begin);
  blocks_.make_room(2);  // what is left over below and above
  const auto take = [&](block_index i) {
    assert(joins(i, o, true));
    const std::uint64_t low = std::max(blocks_[i].begin, begin);
    return cut_from_free(i, low, std::min(blocks_[i].begin + blocks_[i].bytes, end) - low);
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
