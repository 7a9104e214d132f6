#include "heap.hpp"

#include <algorithm>
#include <cassert>

#include "bits.hpp"
#include "without_exceptions.hpp"

namespace gpumem {

heap::heap(unsigned classes) : free_{blocks_, classes}, counters_{classes} { add_owner(); }

owner_id heap::add_owner() {
  pieces_.make_room(free_.next_owner() + std::size_t{1});
  return free_.add_owner();
}

void heap::remove_owner(owner_id owner) noexcept {
  free_.remove_owner(owner);
  pieces_.remove_owner(owner);
}

void heap::make_room_for_segment() {
  if (!spare_segments_.empty()) return;
  make_room(segments_);
  spare_segments_.reserve(segments_.capacity());
}

segment_index heap::add_segment(std::uint64_t begin, std::uint64_t bytes, unsigned segment_class, bool backed,
                                std::uint64_t first_bytes) {
  make_room_for_segment();
  const block_index i = blocks_.take();
  segment_index s = static_cast<segment_index>(segments_.size());
  if (spare_segments_.empty()) {
    segments_.emplace_back();
  } else {
    s = spare_segments_.back();
    spare_segments_.pop_back();
  }
  block& b = blocks_[i];
  b.begin = begin;
  b.bytes = bytes;
  b.segment = s;
  b.segment_class = static_cast<std::uint8_t>(segment_class);
  segments_[s] = {begin, bytes, i, b.segment_class, !backed, whole_.came(bytes, first_bytes)};
  counters_.add_segment();
  if (!backed) {
    pieces_.expect_unbacked();
    b.state = block_state::unbacked;
    add_to_free_lists(i, no_block);
    return s;
  }
  counters_.add_memory(segment_class, bytes);
  make_free(i, idle_owner, 0, false);
  return s;
}

bool heap::segment_idle(segment_index segment) const noexcept {
  const heap_segment& seg = segments_[segment];
  if (seg.bytes == 0) return false;
  const block& b = blocks_[seg.first];
  return b.state == block_state::free && b.owner == idle_owner && b.bytes == seg.bytes;
}

void heap::remove_segment(segment_index segment) noexcept {
  assert(segment_idle(segment));
  const block_index i = segments_[segment].first;
  {
    const piece_counter::recount counted{pieces_, i, false};
    remove_from_free_lists(i);
    blocks_[i].state = block_state::unused;
  }
  blocks_.give(i);
  counters_.remove_segment();
  counters_.add_memory(segments_[segment].segment_class, 0 - segments_[segment].bytes);
  whole_.went(segments_[segment].history, segments_[segment].bytes);
  segments_[segment] = {};
  spare_segments_.push_back(segment);
}

void heap::fence(block_index index) noexcept {
  assert(blocks_[index].state == block_state::live);
  const piece_counter::recount counted{pieces_, index, false};
  counters_.remove(blocks_[index]);
  blocks_[index].state = block_state::fenced;
  counters_.add(blocks_[index]);
}

void heap::leak(block_index index) noexcept {
  counters_.remove(blocks_[index]);
  make_leaked(index);
}

// Requires that the block is in no index, list or sum.
void heap::make_leaked(block_index index) noexcept {
  const piece_counter::recount counted{pieces_, index, pieces_.has_regions()};
  blocks_[index].state = block_state::leaked;
  blocks_[index].in_region = false;
  counters_.add(blocks_[index]);
}

void heap::make_idle(owner_id owner, std::uint64_t done, bool lost) noexcept {
  for (block_index i = free_.oldest(owner); i != no_block; i = free_.oldest(owner)) {
    if (blocks_[i].in_index.epoch > done) return;
    remove_from_free_lists(i);
    if (lost) {
      make_leaked(i);
    } else {
      make_free(i, idle_owner, 0, false);
    }
  }
}

bool heap::hand_over(owner_id source, std::uint64_t upto, owner_id heir, std::uint64_t epoch, bool idle_too) noexcept {
  bool any = false;
  for (block_index i = free_.oldest(source); i != no_block && blocks_[i].in_index.epoch <= upto;
       i = free_.oldest(source)) {
    remove_from_free_lists(i);
    make_free(i, heir, epoch, idle_too);
    any = true;
  }
  return any;
}

bool heap::absorb_idle(owner_id owner) noexcept {
  bool changed = false;
  if (free_.take_unnoted(owner)) {
    for (block_index i = free_.oldest(owner); i != no_block;) {
      const bool merges = free_.is_beside_idle(i);
      i = merges ? merge_with_idle(i) : blocks_[i].in_index.newer;
      changed = changed || merges;
    }
  }
  for (block_index i = free_.take_beside_idle(owner); i != no_block; i = free_.take_beside_idle(owner)) {
    static_cast<void>(merge_with_idle(i));
    changed = true;
  }
  return changed;
}

// Merges the whole run of blocks that are idle or free for the owner of `index` into one, with the owner's latest
// epoch. Returns the next block in the owner's list outside the run.
block_index heap::merge_with_idle(block_index index) noexcept {
  const owner_id owner = blocks_[index].owner;
  const std::uint64_t epoch = blocks_[free_.newest(owner)].in_index.epoch;
  block_index first = index;
  while (free_.holds(blocks_[first].prev, owner, true)) first = blocks_[first].prev;
  std::uint64_t end = blocks_[index].begin + blocks_[index].bytes;
  for (block_index last = index; free_.holds(blocks_[last].next, owner, true);) {
    last = blocks_[last].next;
    end += blocks_[last].bytes;
  }
  const std::uint64_t begin = blocks_[first].begin;
  block_index next = index;
  do {
    next = blocks_[next].in_index.newer;
  } while (next != no_block && blocks_[next].begin >= begin && blocks_[next].begin < end);
  remove_from_free_lists(first);
  make_free(first, owner, epoch, true);
  return next;
}

std::uint64_t heap::metadata_bytes() const noexcept {
  return blocks_.bytes() + free_.metadata_bytes() + pieces_.metadata_bytes() +
         segments_.capacity() * sizeof(heap_segment);
}

block_index heap::containing(std::uint64_t position) const noexcept {
  for (const heap_segment& s : segments_) {
    if (position < s.begin || position >= s.begin + s.bytes) continue;
    block_index i = s.first;
    while (position >= blocks_[i].begin + blocks_[i].bytes) i = blocks_[i].next;
    return i;
  }
  return no_block;
}

block_index heap::carve(block_index source, std::uint64_t bytes, std::uint64_t alignment) {
  const block& b = blocks_[source];
  return carve_at(source, round_up(b.begin, alignment), bytes, b.owner);
}

block_index heap::carve_at(block_index source, std::uint64_t begin, std::uint64_t bytes, owner_id owner) {
  const std::uint64_t end = begin + bytes;
  assert(blocks_[source].begin <= begin && blocks_[source].begin + blocks_[source].bytes > begin);
  blocks_.make_room(2);  // for the remainders below and above
  const piece_counter::recount counted{pieces_, source, end, pieces_.has_regions()};
  const auto take = [&](block_index index) {
    assert(free_.holds(index, owner, true));
    const std::uint64_t low = std::max(blocks_[index].begin, begin);
    return cut_from_free(index, low, std::min(blocks_[index].begin + blocks_[index].bytes, end) - low);
  };
  const block_index taken = take(source);
  while (blocks_[taken].begin + blocks_[taken].bytes < end) {
    static_cast<void>(take(blocks_[taken].next));
    blocks_.merge_next(taken);
  }
  block& b = blocks_[taken];
  b.state = block_state::live;
  b.owner = owner;
  b.in_region = pieces_.is_region(owner);
  b.in_use = use_record{};
  b.in_use.generation = whole_.made(segments_[b.segment].history, segments_[b.segment].bytes, b.bytes);
  counters_.add(b);
  return taken;
}

block_index heap::unite(block_index first, std::uint64_t end, owner_id owner, std::uint64_t epoch) {
  // A merge keeps the lowest record.
  block_index lowest = first;
  while (free_.holds(blocks_[lowest].prev, owner, true)) lowest = blocks_[lowest].prev;
  for (block_index next = first;; next = blocks_[lowest].next) {
    assert(blocks_[next].state == block_state::free);
    remove_from_free_lists(next);
    make_free(next, owner, epoch, true);
    if (blocks_[lowest].begin + blocks_[lowest].bytes >= end) return lowest;
  }
}

void heap::release(block_index index, owner_id owner, std::uint64_t epoch, bool idle_too) noexcept {
  assert(blocks_[index].state == block_state::live || blocks_[index].state == block_state::fenced);
  heap_segment& segment = segments_[blocks_[index].segment];
  whole_.freed(segment.history, segment.bytes, blocks_[index].bytes, blocks_[index].in_use.generation);
  counters_.remove(blocks_[index]);
  make_free(index, owner, epoch, idle_too);
}

// Recounts the block that `make_free` frees, and its neighbours that merge with it. It may have been unbacked.
piece_counter::recount heap::recount_of_merge(block_index index, owner_id owner, bool idle_too) noexcept {
  const bool neighbours = pieces_.has_regions() || !has_memory(blocks_[index]);
  block_index first = index;
  while (free_.holds(blocks_[first].prev, owner, idle_too)) first = blocks_[first].prev;
  while (free_.holds(blocks_[index].next, owner, idle_too)) index = blocks_[index].next;
  return {pieces_, first, blocks_[index].begin + blocks_[index].bytes, neighbours};
}

void heap::make_free(block_index index, owner_id owner, std::uint64_t epoch, bool idle_too) noexcept {
  const auto counted = recount_of_merge(index, owner, idle_too);
  while (free_.holds(blocks_[index].next, owner, idle_too)) {
    remove_from_free_lists(blocks_[index].next);
    blocks_.merge_next(index);
  }
  while (free_.holds(blocks_[index].prev, owner, idle_too)) {
    index = blocks_[index].prev;
    remove_from_free_lists(index);
    blocks_.merge_next(index);
  }
  block& b = blocks_[index];
  b.state = block_state::free;
  b.owner = owner;
  b.in_region = pieces_.is_region(owner);
  b.in_index.epoch = epoch;
  add_to_free_lists(index, free_.newest(owner));
}

// Inserts a free, unbacked or vacating block into its list and index, and adds it to the sums; `after` as for
// `free_lists::insert`.
void heap::add_to_free_lists(block_index index, block_index after) noexcept {
  const block& b = blocks_[index];
  if (!has_memory(b)) {
    unbacked_.insert(index);
  } else {
    free_.insert(index, after);
  }
  counters_.add(b);
}

void heap::remove_from_free_lists(block_index index) noexcept {
  const block& b = blocks_[index];
  if (!has_memory(b)) {
    unbacked_.erase(index);
  } else {
    free_.erase(index);
  }
  counters_.remove(b);
}

}  // namespace gpumem
