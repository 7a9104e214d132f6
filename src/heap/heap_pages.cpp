// Paged segments of a heap: memory is put behind some of their addresses and taken away again.
//
// Between two live blocks of a paged segment every byte is free or unbacked. A request may therefore be placed where
// some memory is missing: `commit` the unbacked part, then `carve_at`. The pool's lock guards everything, and the pool
// keeps unbacked blocks to whole pages.
#include <cassert>

#include "heap.hpp"

namespace gpumem {

void heap::enter_unbacked(block_index index) noexcept {
  block& b = blocks_[index];
  b.state = block_state::unbacked;
  b.owner = idle_owner;
  b.in_region = false;
  b.in_index = index_links{};
  b.in_index.newer = unbacked_;
  if (unbacked_ != no_block) blocks_[unbacked_].in_index.older = index;
  unbacked_ = index;
  totals_.unbacked_bytes += b.bytes;
  if (b.bytes == segments_[b.segment].bytes) --totals_.segments;
}

void heap::leave_unbacked(block_index index) noexcept {
  const index_links& links = blocks_[index].in_index;
  (links.older != no_block ? blocks_[links.older].in_index.newer : unbacked_) = links.newer;
  if (links.newer != no_block) blocks_[links.newer].in_index.older = links.older;
  totals_.unbacked_bytes -= blocks_[index].bytes;
  if (blocks_[index].bytes == segments_[blocks_[index].segment].bytes) ++totals_.segments;
}

// Splits `index` and returns the block with exactly these bounds. The parts in front and behind become blocks with the
// same state, owner and epoch; none is in an index or a list. Requires that `index` is in none, and room for two
// blocks.
block_index heap::cut_out(block_index index, std::uint64_t begin, std::uint64_t bytes) {
  const auto split = [this](block_index low, std::uint64_t boundary) {
    const block_index high = blocks_.take();
    block& l = blocks_[low];
    block& h = blocks_[high];
    h = l;
    h.begin = boundary;
    h.bytes = l.begin + l.bytes - boundary;
    l.bytes = boundary - l.begin;
    h.prev = low;
    l.next = high;
    if (h.next != no_block) blocks_[h.next].prev = high;
    return high;
  };
  assert(blocks_[index].begin <= begin && begin + bytes <= blocks_[index].begin + blocks_[index].bytes);
  if (blocks_[index].begin != begin) index = split(index, begin);
  if (blocks_[index].bytes != bytes) split(index, begin + bytes);
  return index;
}

// The same for a free block: removes it from its owner's index, and inserts the parts in front and behind again with
// the epoch of the whole.
block_index heap::cut_from_free(block_index index, std::uint64_t begin, std::uint64_t bytes) {
  const std::uint64_t low = blocks_[index].begin;
  const std::uint64_t high = low + blocks_[index].bytes;
  const block_index order_before = blocks_[index].in_index.older;
  leave(index);
  const block_index cut = cut_out(index, begin, bytes);
  if (high != begin + bytes) enter(blocks_[cut].next, order_before);
  if (low != begin) enter(blocks_[cut].prev, order_before);
  return cut;
}

block_index heap::commit(block_index index, std::uint64_t begin, std::uint64_t bytes) {
  assert(blocks_[index].state == block_state::unbacked);
  blocks_.make_room(2);
  const std::uint64_t low = blocks_[index].begin;
  const std::uint64_t high = low + blocks_[index].bytes;
  leave_unbacked(index);
  const block_index cut = cut_out(index, begin, bytes);
  if (low != begin) enter_unbacked(blocks_[cut].prev);
  if (high != begin + bytes) enter_unbacked(blocks_[cut].next);
  const unsigned segment_class = blocks_[cut].segment_class;
  totals_.segment_bytes += bytes;
  by_class_[segment_class].segment_bytes += bytes;
  const block_index prev = blocks_[cut].prev;
  make_free(cut, idle_owner, 0, false);
  const bool merged =
      prev != no_block && blocks_[prev].state == block_state::free && blocks_[prev].begin + blocks_[prev].bytes > begin;
  return merged ? prev : cut;
}

block_index heap::decommit(block_index index, std::uint64_t begin, std::uint64_t bytes) {
  assert(blocks_[index].state == block_state::free && blocks_[index].owner == idle_owner);
  blocks_.make_room(2);
  const auto counted = recount_of(index, true);
  block_index cut = cut_from_free(index, begin, bytes);
  totals_.segment_bytes -= bytes;
  by_class_[blocks_[cut].segment_class].segment_bytes -= bytes;
  const auto unbacked = [this](block_index neighbour) {
    return neighbour != no_block && blocks_[neighbour].state == block_state::unbacked;
  };
  if (unbacked(blocks_[cut].next)) {
    leave_unbacked(blocks_[cut].next);
    merge_above(cut);
  }
  if (unbacked(blocks_[cut].prev)) {
    cut = blocks_[cut].prev;
    leave_unbacked(cut);
    merge_above(cut);
  }
  enter_unbacked(cut);
  return cut;
}

}  // namespace gpumem
