// What a heap does with a paged segment: memory comes behind some of its addresses and goes again.
//
// Between two blocks of such a segment that are live, every byte is free or unbacked, so a request may also be placed
// where it needs some memory to be put behind it: `commit` what is unbacked there, then `carve_at`. The pool's lock
// guards all of it, and the pool keeps unbacked blocks to whole pages.
#include <cassert>

#include "heap.hpp"

namespace gpumem {

void heap::enter_unbacked(block_index i) noexcept {
  block& b = blocks_[i];
  b.state = block_state::unbacked;
  b.owner = idle_owner;
  b.in_index = index_links{};
  b.in_index.newer = unbacked_;
  if (unbacked_ != no_block) blocks_[unbacked_].in_index.older = i;
  unbacked_ = i;
  totals_.unbacked_bytes += b.bytes;
}

void heap::leave_unbacked(block_index i) noexcept {
  const index_links& links = blocks_[i].in_index;
  (links.older != no_block ? blocks_[links.older].in_index.newer : unbacked_) = links.newer;
  if (links.newer != no_block) blocks_[links.newer].in_index.older = links.older;
  totals_.unbacked_bytes -= blocks_[i].bytes;
}

// The block with exactly these bounds; what is cut off in front and behind are blocks of their own. All have the state,
// owner and epoch that `i` had, and none is in an index or a list. Requires that `i` is in none, and room for two
// blocks.
block_index heap::cut_out(block_index i, std::uint64_t begin, std::uint64_t bytes) {
  const auto split = [this](block_index low, std::uint64_t at) {
    const block_index high = blocks_.take();
    block& l = blocks_[low];
    block& h = blocks_[high];
    h = l;
    h.begin = at;
    h.bytes = l.begin + l.bytes - at;
    l.bytes = at - l.begin;
    h.below = low;
    l.above = high;
    if (h.above != no_block) blocks_[h.above].below = high;
    return high;
  };
  assert(blocks_[i].begin <= begin && begin + bytes <= blocks_[i].begin + blocks_[i].bytes);
  if (blocks_[i].begin != begin) i = split(i, begin);
  if (blocks_[i].bytes != bytes) split(i, begin + bytes);
  return i;
}

// The same of a free block: it leaves its owner's index, and what is cut off enters it again with the epoch that the
// whole had.
block_index heap::cut_from_free(block_index i, std::uint64_t begin, std::uint64_t bytes) {
  const std::uint64_t low = blocks_[i].begin;
  const std::uint64_t high = low + blocks_[i].bytes;
  const block_index order_before = blocks_[i].in_index.older;
  leave(i);
  const block_index cut = cut_out(i, begin, bytes);
  if (high != begin + bytes) enter(blocks_[cut].above, order_before);
  if (low != begin) enter(blocks_[cut].below, order_before);
  return cut;
}

block_index heap::commit(block_index i, std::uint64_t begin, std::uint64_t bytes) {
  assert(blocks_[i].state == block_state::unbacked);
  blocks_.make_room(2);
  const std::uint64_t low = blocks_[i].begin;
  const std::uint64_t high = low + blocks_[i].bytes;
  leave_unbacked(i);
  const block_index cut = cut_out(i, begin, bytes);
  if (low != begin) enter_unbacked(blocks_[cut].below);
  if (high != begin + bytes) enter_unbacked(blocks_[cut].above);
  const unsigned klass = blocks_[cut].klass;
  totals_.segment_bytes += bytes;
  by_class_[klass].segment_bytes += bytes;
  const block_index below = blocks_[cut].below;
  make_free(cut, idle_owner, 0, false);
  const bool merged = below != no_block && blocks_[below].state == block_state::free &&
                      blocks_[below].begin + blocks_[below].bytes > begin;
  return merged ? below : cut;
}

block_index heap::decommit(block_index i, std::uint64_t begin, std::uint64_t bytes) {
  assert(blocks_[i].state == block_state::free && blocks_[i].owner == idle_owner);
  blocks_.make_room(2);
  block_index cut = cut_from_free(i, begin, bytes);
  totals_.segment_bytes -= bytes;
  by_class_[blocks_[cut].klass].segment_bytes -= bytes;
  const auto unbacked = [this](block_index n) { return n != no_block && blocks_[n].state == block_state::unbacked; };
  if (unbacked(blocks_[cut].above)) {
    leave_unbacked(blocks_[cut].above);
    merge_above(cut);
  }
  if (unbacked(blocks_[cut].below)) {
    cut = blocks_[cut].below;
    leave_unbacked(cut);
    merge_above(cut);
  }
  enter_unbacked(cut);
  return cut;
}

}  // namespace gpumem
