// Paged segments of a heap: memory is put behind some of their addresses and taken away again.
//
// Between two live blocks of a paged segment every byte is free, unbacked or vacating. A request may therefore be
// placed where some memory is missing: `commit` the unbacked part, then `carve_at`. The pool's lock guards everything,
// and the pool keeps unbacked blocks to whole pages.
#include <cassert>

#include "heap.hpp"

namespace gpumem {

// Cuts a free block out of another: removes that from its owner's index, and inserts the parts in front and behind
// again with the epoch of the whole.
block_index heap::cut_from_free(block_index index, std::uint64_t begin, std::uint64_t bytes) {
  const std::uint64_t low = blocks_[index].begin;
  const std::uint64_t high = low + blocks_[index].bytes;
  const block_index order_before = blocks_[index].in_index.older;
  remove_from_free_lists(index);
  const block_index cut = blocks_.cut(index, begin, bytes);
  if (high != begin + bytes) add_to_free_lists(blocks_[cut].next, order_before);
  if (low != begin) add_to_free_lists(blocks_[cut].prev, order_before);
  return cut;
}

block_index heap::commit(block_index index, std::uint64_t begin, std::uint64_t bytes, owner_id owner,
                         std::uint64_t epoch) {
  assert(!has_memory(blocks_[index]));
  blocks_.make_room(2);
  const std::uint64_t low = blocks_[index].begin;
  const std::uint64_t high = low + blocks_[index].bytes;
  remove_from_free_lists(index);
  const block_index cut = blocks_.cut(index, begin, bytes);
  if (low != begin) add_to_free_lists(blocks_[cut].prev, no_block);
  if (high != begin + bytes) add_to_free_lists(blocks_[cut].next, no_block);
  counters_.add_memory(blocks_[cut].segment_class, bytes);
  const block_index prev = blocks_[cut].prev;
  make_free(cut, owner, epoch, false);
  const bool merged =
      prev != no_block && blocks_[prev].state == block_state::free && blocks_[prev].begin + blocks_[prev].bytes > begin;
  return merged ? prev : cut;
}

block_index heap::decommit(block_index index, std::uint64_t begin, std::uint64_t bytes, block_state becomes) {
  const piece_counter::recount counted{pieces_, index, true};
  block_index cut = index;
  if (blocks_[index].state == block_state::vacating) {
    assert(blocks_[index].begin == begin && blocks_[index].bytes == bytes);
    remove_from_free_lists(index);
  } else {
    assert(blocks_[index].state == block_state::free);
    blocks_.make_room(2);
    cut = cut_from_free(index, begin, bytes);
    counters_.add_memory(blocks_[cut].segment_class, 0 - bytes);
  }
  const auto merges = [&](block_index neighbour) {
    return becomes == block_state::unbacked && neighbour != no_block &&
           blocks_[neighbour].state == block_state::unbacked;
  };
  if (merges(blocks_[cut].next)) {
    remove_from_free_lists(blocks_[cut].next);
    blocks_.merge_next(cut);
  }
  if (merges(blocks_[cut].prev)) {
    cut = blocks_[cut].prev;
    remove_from_free_lists(cut);
    blocks_.merge_next(cut);
  }
  blocks_[cut].state = becomes;
  blocks_[cut].owner = idle_owner;
  blocks_[cut].in_region = false;
  add_to_free_lists(cut, no_block);
  return cut;
}

}  // namespace gpumem
