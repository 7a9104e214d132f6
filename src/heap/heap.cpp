#include "heap.hpp"

#include <algorithm>
#include <cassert>
#include <new>
#include <utility>

#include "without_exceptions.hpp"

namespace gpumem {

heap::heap(unsigned classes) : classes_{classes}, by_class_(classes) { add_owner(); }

owner_id heap::add_owner() {
  owner_id owner = 0;
  if (!spare_owners_.empty()) {
    owner = spare_owners_.back();
    spare_owners_.pop_back();
  } else {
    owner_record made;
    made.by_class.resize(classes_);
    make_room(owners_);
    pieces_.make_room(owners_.size() + 1);
    spare_owners_.reserve(owners_.capacity());  // so that the rest need not allocate
    free_owners_.reserve(owners_.capacity());
    owner = static_cast<owner_id>(owners_.size());
    owners_.push_back(std::move(made));
  }
  owners_[owner].in_use = true;
  return owner;
}

void heap::remove_owner(owner_id owner) noexcept {
  assert(owner != idle_owner && owns_nothing(owner));
  owners_[owner].in_use = owners_[owner].any_beside_idle = false;
  owners_[owner].beside_idle.clear();
  pieces_.remove_owner(owner);
  spare_owners_.push_back(owner);
}

void heap::make_room_for_segment() {
  if (!spare_segments_.empty()) return;
  make_room(segments_);
  spare_segments_.reserve(segments_.capacity());
}

segment_index heap::add_segment(std::uint64_t begin, std::uint64_t bytes, unsigned segment_class, bool backed) {
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
  segments_[s] = {begin, bytes, i, b.segment_class, !backed};
  ++totals_.segments;
  if (!backed) {
    pieces_.expect_unbacked();
    enter_unbacked(i);
    return s;
  }
  totals_.segment_bytes += bytes;
  by_class_[segment_class].segment_bytes += bytes;
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
    const auto counted = recount_of(i, false);
    leave(i);
    blocks_[i].state = block_state::unused;
  }
  blocks_.give(i);
  --totals_.segments;
  totals_.segment_bytes -= segments_[segment].bytes;
  by_class_[segments_[segment].segment_class].segment_bytes -= segments_[segment].bytes;
  segments_[segment] = {};
  spare_segments_.push_back(segment);
}

void heap::fence(block_index index) noexcept {
  assert(blocks_[index].state == block_state::live);
  const auto counted = recount_of(index, false);
  count_out_of_use(blocks_[index]);
  blocks_[index].state = block_state::fenced;
  totals_.fenced_bytes += blocks_[index].bytes;
  ++totals_.fenced_blocks;
}

void heap::leak(block_index index) noexcept {
  const auto counted = recount_of(index, pieces_.has_regions());
  count_out_of_use(blocks_[index]);
  blocks_[index].state = block_state::leaked;
  blocks_[index].in_region = false;
  totals_.leaked_bytes += blocks_[index].bytes;
  ++totals_.leaked_blocks;
}

// Subtracts a live or fenced block from the totals before its state changes.
void heap::count_out_of_use(const block& block) noexcept {
  assert(block.state == block_state::live || block.state == block_state::fenced);
  if (block.state == block_state::live) {
    totals_.live_bytes -= block.bytes;
    --totals_.live_blocks;
  } else {
    totals_.fenced_bytes -= block.bytes;
    --totals_.fenced_blocks;
  }
}

void heap::make_idle(owner_id owner, std::uint64_t done, bool lost) noexcept {
  while (owners_[owner].oldest != no_block) {
    const block_index i = owners_[owner].oldest;
    if (blocks_[i].in_index.epoch > done) return;
    leave(i);
    if (lost) {
      const auto counted = recount_of(i, pieces_.has_regions());
      blocks_[i].state = block_state::leaked;
      blocks_[i].in_region = false;
      totals_.leaked_bytes += blocks_[i].bytes;
      ++totals_.leaked_blocks;
    } else {
      make_free(i, idle_owner, 0, false);
    }
  }
}

bool heap::hand_over(owner_id source, std::uint64_t upto, owner_id heir, std::uint64_t epoch, bool idle_too) noexcept {
  bool any = false;
  for (block_index i = owners_[source].oldest; i != no_block && blocks_[i].in_index.epoch <= upto;
       i = owners_[source].oldest) {
    leave(i);
    make_free(i, heir, epoch, idle_too);
    any = true;
  }
  return any;
}

bool heap::absorb_idle(owner_id owner) noexcept {
  owner_record& owned = owners_[owner];
  bool changed = false;
  if (std::exchange(owned.any_beside_idle, false)) {
    for (block_index i = owned.oldest; i != no_block;) {
      const bool merges = is_beside_idle(i);
      i = merges ? merge_with_idle(i) : blocks_[i].in_index.newer;
      changed = changed || merges;
    }
  }
  while (!owned.beside_idle.empty()) {
    const block_index i = owned.beside_idle.back();
    owned.beside_idle.pop_back();
    if (!joins(i, owner, false) || !is_beside_idle(i)) continue;
    static_cast<void>(merge_with_idle(i));
    changed = true;
  }
  return changed;
}

bool heap::is_beside_idle(block_index index) const noexcept {
  return joins(blocks_[index].prev, idle_owner, false) || joins(blocks_[index].next, idle_owner, false);
}

// Merges the whole run of blocks that are idle or free for the owner of `index` into one, with the owner's latest
// epoch. Returns the next block in the owner's list outside the run.
block_index heap::merge_with_idle(block_index index) noexcept {
  const owner_id owner = blocks_[index].owner;
  const std::uint64_t epoch = blocks_[owners_[owner].newest].in_index.epoch;
  block_index first = index;
  while (joins(blocks_[first].prev, owner, true)) first = blocks_[first].prev;
  std::uint64_t end = blocks_[index].begin + blocks_[index].bytes;
  for (block_index last = index; joins(blocks_[last].next, owner, true);) {
    last = blocks_[last].next;
    end += blocks_[last].bytes;
  }
  const std::uint64_t begin = blocks_[first].begin;
  block_index next = index;
  do {
    next = blocks_[next].in_index.newer;
  } while (next != no_block && blocks_[next].begin >= begin && blocks_[next].begin < end);
  leave(first);
  make_free(first, owner, epoch, true);
  return next;
}

// Notes an owned block that has an idle neighbour now, for `absorb_idle`.
void heap::note_beside_idle(block_index neighbour) noexcept {
  owner_record& owned = owners_[blocks_[neighbour].owner];
  if (owned.any_beside_idle) return;
  std::size_t free_blocks = 0;
  for (const free_index& index : owned.by_class) free_blocks += index.size();
  try {
    if (owned.beside_idle.size() <= free_blocks) return owned.beside_idle.push_back(neighbour);
  } catch (const std::bad_alloc&) {
  }
  owned.any_beside_idle = true;
  owned.beside_idle.clear();
}

std::uint64_t heap::metadata_bytes() const noexcept {
  std::uint64_t noted = 0;
  for (const owner_record& record : owners_) noted += record.beside_idle.capacity() * sizeof(block_index);
  return blocks_.bytes() + noted + pieces_.metadata_bytes() + owners_.capacity() * sizeof(owner_record) +
         owners_.size() * classes_ * sizeof(free_index) +
         (spare_owners_.capacity() + free_owners_.capacity()) * sizeof(owner_id) +
         segments_.capacity() * sizeof(heap_segment);
}

block_index heap::carve(block_index source, std::uint64_t bytes, std::uint64_t alignment) {
  const block& b = blocks_[source];
  return carve_at(source, b.begin + lead(b.begin, alignment), bytes, b.owner);
}

block_index heap::carve_at(block_index source, std::uint64_t begin, std::uint64_t bytes, owner_id owner) {
  const std::uint64_t end = begin + bytes;
  assert(blocks_[source].begin <= begin && blocks_[source].begin + blocks_[source].bytes > begin);
  blocks_.make_room(2);  // for the remainders below and above
  const piece_counter::recount counted{pieces_, source, end, pieces_.has_regions()};
  const auto take = [&](block_index index) {
    assert(joins(index, owner, true));
    const std::uint64_t low = std::max(blocks_[index].begin, begin);
    return cut_from_free(index, low, std::min(blocks_[index].begin + blocks_[index].bytes, end) - low);
  };
  const block_index taken = take(source);
  while (blocks_[taken].begin + blocks_[taken].bytes < end) {
    static_cast<void>(take(blocks_[taken].next));
    merge_above(taken);
  }
  block& b = blocks_[taken];
  b.state = block_state::live;
  b.owner = owner;
  b.in_region = pieces_.is_region(owner);
  b.in_use = use_record{};
  totals_.live_bytes += b.bytes;
  ++totals_.live_blocks;
  return taken;
}

block_index heap::unite(block_index first, std::uint64_t end, owner_id owner, std::uint64_t epoch) {
  // A merge keeps the lowest record.
  block_index lowest = first;
  while (joins(blocks_[lowest].prev, owner, true)) lowest = blocks_[lowest].prev;
  for (block_index next = first;; next = blocks_[lowest].next) {
    assert(blocks_[next].state == block_state::free);
    leave(next);
    make_free(next, owner, epoch, true);
    if (blocks_[lowest].begin + blocks_[lowest].bytes >= end) return lowest;
  }
}

void heap::release(block_index index, owner_id owner, std::uint64_t epoch, bool idle_too) noexcept {
  count_out_of_use(blocks_[index]);
  make_free(index, owner, epoch, idle_too);
}

bool heap::joins(block_index neighbour, owner_id owner, bool idle_too) const noexcept {
  if (neighbour == no_block) return false;
  const block& n = blocks_[neighbour];
  return n.state == block_state::free && (n.owner == owner || (idle_too && n.owner == idle_owner));
}

// Recounts the block that `make_free` frees, and its neighbours that merge with it. It may have been unbacked.
piece_counter::recount heap::recount_of_merge(block_index index, owner_id owner, bool idle_too) noexcept {
  const bool neighbours = pieces_.has_regions() || blocks_[index].state == block_state::unbacked;
  block_index first = index;
  while (joins(blocks_[first].prev, owner, idle_too)) first = blocks_[first].prev;
  while (joins(blocks_[index].next, owner, idle_too)) index = blocks_[index].next;
  return {pieces_, first, blocks_[index].begin + blocks_[index].bytes, neighbours};
}

void heap::make_free(block_index index, owner_id owner, std::uint64_t epoch, bool idle_too) noexcept {
  const auto counted = recount_of_merge(index, owner, idle_too);
  while (joins(blocks_[index].next, owner, idle_too)) {
    leave(blocks_[index].next);
    merge_above(index);
  }
  while (joins(blocks_[index].prev, owner, idle_too)) {
    index = blocks_[index].prev;
    leave(index);
    merge_above(index);
  }
  block& b = blocks_[index];
  b.state = block_state::free;
  b.owner = owner;
  b.in_region = pieces_.is_region(owner);
  b.in_index.epoch = epoch;
  enter(index, owners_[owner].newest);
}

// Merges a block with its upper neighbour, whose record is freed. Requires that neither is in an index.
void heap::merge_above(block_index index) noexcept {
  block& b = blocks_[index];
  const block_index next = b.next;
  const block& a = blocks_[next];
  b.bytes += a.bytes;
  b.next = a.next;
  if (b.next != no_block) blocks_[b.next].prev = index;
  blocks_.give(next);
}

// Inserts a block into its owner's index, and into the owner's list by epoch after `after` (first if `no_block`).
void heap::enter(block_index index, block_index after) noexcept {
  const block& b = blocks_[index];
  owners_[b.owner].by_class[b.segment_class].insert(blocks_, index);
  enter_order(index, after);
  count_free(b, b.bytes);
  ++totals_.free_blocks;
  if (b.owner != idle_owner) {
    if (is_beside_idle(index)) note_beside_idle(index);
    return;
  }
  for (const block_index beside : {b.prev, b.next}) {
    const bool is_owned = beside != no_block && blocks_[beside].state == block_state::free;
    if (is_owned && blocks_[beside].owner != idle_owner) note_beside_idle(beside);
  }
}

void heap::leave(block_index index) noexcept {
  const block& b = blocks_[index];
  owners_[b.owner].by_class[b.segment_class].erase(blocks_, index);
  leave_order(index);
  count_free(b, 0 - b.bytes);
  --totals_.free_blocks;
}

void heap::enter_order(block_index index, block_index after) noexcept {
  block& b = blocks_[index];
  owner_record& record = owners_[b.owner];
  if (record.oldest == no_block && b.owner != idle_owner) {
    record.place = static_cast<std::uint32_t>(free_owners_.size());
    free_owners_.push_back(b.owner);
  }
  b.in_index.older = after;
  block_index& newer = after != no_block ? blocks_[after].in_index.newer : record.oldest;
  b.in_index.newer = newer;
  newer = index;
  (b.in_index.newer != no_block ? blocks_[b.in_index.newer].in_index.older : record.newest) = index;
}

void heap::leave_order(block_index index) noexcept {
  const block& b = blocks_[index];
  owner_record& record = owners_[b.owner];
  (b.in_index.older != no_block ? blocks_[b.in_index.older].in_index.newer : record.oldest) = b.in_index.newer;
  (b.in_index.newer != no_block ? blocks_[b.in_index.newer].in_index.older : record.newest) = b.in_index.older;
  if (record.oldest == no_block && b.owner != idle_owner) {
    free_owners_[record.place] = free_owners_.back();
    owners_[free_owners_[record.place]].place = record.place;
    free_owners_.pop_back();
  }
}

// Adds `more` bytes (mod 2^64) to the free totals of the block's owner and class.
void heap::count_free(const block& block, std::uint64_t more) noexcept {
  (block.owner == idle_owner ? totals_.idle_bytes : totals_.cached_bytes) += more;
  by_class_[block.segment_class].free_bytes += more;
}

}  // namespace gpumem
