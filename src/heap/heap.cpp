#include "heap.hpp"

#include <algorithm>
#include <cassert>
#include <new>
#include <utility>

#include "without_exceptions.hpp"

namespace gpumem {

heap::heap(unsigned classes) : classes_{classes}, by_class_(classes) { add_owner(); }

owner_id heap::add_owner() {
  owner_id o = 0;
  if (!spare_owners_.empty()) {
    o = spare_owners_.back();
    spare_owners_.pop_back();
  } else {
    owner made;
    made.by_class.resize(classes_);
    make_room(owners_);
    spare_owners_.reserve(owners_.capacity());  // so that nothing else here need allocate
    free_owners_.reserve(owners_.capacity());
    o = static_cast<owner_id>(owners_.size());
    owners_.push_back(std::move(made));
  }
  owners_[o].in_use = true;
  return o;
}

void heap::remove_owner(owner_id o) noexcept {
  assert(o != idle_owner && owns_nothing(o));
  owners_[o].in_use = owners_[o].any_beside_idle = false;
  owners_[o].beside_idle.clear();
  spare_owners_.push_back(o);
}

void heap::make_room_for_segment() {
  if (!spare_segments_.empty()) return;
  make_room(segments_);
  spare_segments_.reserve(segments_.capacity());
}

segment_index heap::add_segment(std::uint64_t begin, std::uint64_t bytes, unsigned klass, bool backed) {
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
  b.klass = static_cast<std::uint8_t>(klass);
  segments_[s] = {begin, bytes, i, b.klass, !backed};
  if (!backed) {
    enter_unbacked(i);
    return s;
  }
  totals_.segment_bytes += bytes;
  by_class_[klass].segment_bytes += bytes;
  make_free(i, idle_owner, 0, false);
  return s;
}

bool heap::segment_idle(segment_index s) const noexcept {
  const heap_segment& seg = segments_[s];
  if (seg.bytes == 0) return false;
  const block& b = blocks_[seg.first];
  return b.state == block_state::free && b.owner == idle_owner && b.bytes == seg.bytes;
}

void heap::remove_segment(segment_index s) noexcept {
  assert(segment_idle(s));
  const block_index i = segments_[s].first;
  leave(i);
  blocks_.give(i);
  totals_.segment_bytes -= segments_[s].bytes;
  by_class_[segments_[s].klass].segment_bytes -= segments_[s].bytes;
  segments_[s] = {};
  spare_segments_.push_back(s);
}

void heap::fence(block_index i) noexcept {
  assert(blocks_[i].state == block_state::live);
  count_out_of_use(blocks_[i]);
  blocks_[i].state = block_state::fenced;
  totals_.fenced_bytes += blocks_[i].bytes;
}

void heap::leak(block_index i) noexcept {
  count_out_of_use(blocks_[i]);
  blocks_[i].state = block_state::leaked;
  totals_.leaked_bytes += blocks_[i].bytes;
}

// A live or fenced block is about to have another state.
void heap::count_out_of_use(const block& b) noexcept {
  assert(b.state == block_state::live || b.state == block_state::fenced);
  if (b.state == block_state::live) {
    totals_.live_bytes -= b.bytes;
    --totals_.live_blocks;
  } else {
    totals_.fenced_bytes -= b.bytes;
  }
}

void heap::make_idle(owner_id o, std::uint64_t done, bool lost) noexcept {
  while (owners_[o].oldest != no_block) {
    const block_index i = owners_[o].oldest;
    if (blocks_[i].in_index.epoch > done) return;
    leave(i);
    if (lost) {
      blocks_[i].state = block_state::leaked;
      totals_.leaked_bytes += blocks_[i].bytes;
    } else {
      make_free(i, idle_owner, 0, false);
    }
  }
}

bool heap::hand_over(owner_id from, std::uint64_t upto, owner_id heir, std::uint64_t epoch, bool idle_too) noexcept {
  bool any = false;
  for (block_index i = owners_[from].oldest; i != no_block && blocks_[i].in_index.epoch <= upto;
       i = owners_[from].oldest) {
    leave(i);
    make_free(i, heir, epoch, idle_too);
    any = true;
  }
  return any;
}

bool heap::absorb_idle(owner_id o) noexcept {
  owner& owned = owners_[o];
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
    if (!joins(i, o, false) || !is_beside_idle(i)) continue;
    static_cast<void>(merge_with_idle(i));
    changed = true;
  }
  return changed;
}

bool heap::is_beside_idle(block_index i) const noexcept {
  return joins(blocks_[i].below, idle_owner, false) || joins(blocks_[i].above, idle_owner, false);
}

// The whole run of blocks that are free for the owner of `i` or idle becomes one, as late as the owner's latest.
// Returns the next block of the owner's list that is not in the run.
block_index heap::merge_with_idle(block_index i) noexcept {
  const owner_id o = blocks_[i].owner;
  const std::uint64_t epoch = blocks_[owners_[o].newest].in_index.epoch;
  block_index first = i;
  while (joins(blocks_[first].below, o, true)) first = blocks_[first].below;
  std::uint64_t end = blocks_[i].begin + blocks_[i].bytes;
  for (block_index last = i; joins(blocks_[last].above, o, true);) {
    last = blocks_[last].above;
    end += blocks_[last].bytes;
  }
  const std::uint64_t begin = blocks_[first].begin;
  block_index next = i;
  do {
    next = blocks_[next].in_index.newer;
  } while (next != no_block && blocks_[next].begin >= begin && blocks_[next].begin < end);
  leave(first);
  make_free(first, o, epoch, true);
  return next;
}

// For `absorb_idle`: an owned block that has an idle neighbour now.
void heap::note_beside_idle(block_index i) noexcept {
  owner& owned = owners_[blocks_[i].owner];
  if (owned.any_beside_idle) return;
  std::size_t free_blocks = 0;
  for (const free_index& index : owned.by_class) free_blocks += index.size();
  try {
    if (owned.beside_idle.size() <= free_blocks) return owned.beside_idle.push_back(i);
  } catch (const std::bad_alloc&) {
  }
  owned.any_beside_idle = true;
  owned.beside_idle.clear();
}

block_index heap::containing(std::uint64_t position) const noexcept {
  for (const heap_segment& s : segments_) {
    if (position < s.begin || position >= s.begin + s.bytes) continue;
    block_index i = s.first;
    while (position >= blocks_[i].begin + blocks_[i].bytes) i = blocks_[i].above;
    return i;
  }
  return no_block;
}

std::uint64_t heap::largest_free() const noexcept {
  std::uint64_t most = 0;
  const auto look_at = [&](owner_id o) {
    for (const free_index& index : owners_[o].by_class) {
      const block_index i = index.largest(blocks_);
      if (i != no_block && blocks_[i].bytes > most) most = blocks_[i].bytes;
    }
  };
  look_at(idle_owner);
  for (const owner_id o : free_owners_) look_at(o);
  return most;
}

std::uint64_t heap::metadata_bytes() const noexcept {
  std::uint64_t noted = 0;
  for (const owner& o : owners_) noted += o.beside_idle.capacity() * sizeof(block_index);
  return blocks_.bytes() + noted + owners_.capacity() * sizeof(owner) + owners_.size() * classes_ * sizeof(free_index) +
         (spare_owners_.capacity() + free_owners_.capacity()) * sizeof(owner_id) +
         segments_.capacity() * sizeof(heap_segment);
}

block_index heap::best_fit(unsigned klass, owner_id o, bool idle_too, std::uint64_t bytes,
                           std::uint64_t alignment) const noexcept {
  const auto search = [&](owner_id whose) {
    const free_index& index = owners_[whose].by_class[klass];
    if (index.empty()) return no_block;
    block_index found = index.best_fit(blocks_, bytes);
    if (alignment <= 512 || found == no_block) return found;
    const block& b = blocks_[found];
    if (lead(b.begin, alignment) + bytes <= b.bytes) return found;
    return index.best_fit(blocks_, bytes + alignment - 512);
  };
  const block_index own = search(o);
  if (!idle_too || o == idle_owner) return own;
  const block_index idle = search(idle_owner);
  if (own == no_block || idle == no_block) return own != no_block ? own : idle;
  return blocks_[own].bytes <= blocks_[idle].bytes ? own : idle;
}

block_index heap::lowest_fit(unsigned klass, owner_id o, std::uint64_t bytes, std::uint64_t alignment) const noexcept {
  const block_index best = best_fit(klass, o, true, bytes, alignment);
  if (best == no_block || blocks_[best].bytes == bytes) return best;
  const std::uint64_t least = bytes + (alignment - 512);
  const block_index own = owners_[o].by_class[klass].lowest_fit(blocks_, least);
  const block_index idle = owners_[idle_owner].by_class[klass].lowest_fit(blocks_, least);
  if (own == no_block && idle == no_block) return best;
  if (own == no_block || idle == no_block) return own != no_block ? own : idle;
  return blocks_[own].begin < blocks_[idle].begin ? own : idle;
}

block_index heap::carve(block_index from, std::uint64_t bytes, std::uint64_t alignment) {
  const block& b = blocks_[from];
  return carve_at(from, b.begin + lead(b.begin, alignment), bytes, b.owner);
}

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

block_index heap::unite(block_index first, std::uint64_t end, owner_id o, std::uint64_t epoch) {
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

void heap::release(block_index i, owner_id o, std::uint64_t epoch, bool idle_too) noexcept {
  count_out_of_use(blocks_[i]);
  make_free(i, o, epoch, idle_too);
}

bool heap::joins(block_index neighbour, owner_id o, bool idle_too) const noexcept {
  if (neighbour == no_block) return false;
  const block& n = blocks_[neighbour];
  return n.state == block_state::free && (n.owner == o || (idle_too && n.owner == idle_owner));
}

void heap::make_free(block_index i, owner_id o, std::uint64_t epoch, bool idle_too) noexcept {
  while (joins(blocks_[i].above, o, idle_too)) {
    leave(blocks_[i].above);
    merge_above(i);
  }
  while (joins(blocks_[i].below, o, idle_too)) {
    i = blocks_[i].below;
    leave(i);
    merge_above(i);
  }
  block& b = blocks_[i];
  b.state = block_state::free;
  b.owner = o;
  b.in_index.epoch = epoch;
  enter(i, owners_[o].newest);
}

// Block i takes in its upper neighbour, whose record goes back; neither may be in an index.
void heap::merge_above(block_index i) noexcept {
  block& b = blocks_[i];
  const block_index above = b.above;
  const block& a = blocks_[above];
  b.bytes += a.bytes;
  b.above = a.above;
  if (b.above != no_block) blocks_[b.above].below = i;
  blocks_.give(above);
}

// Into the index of the block's owner, and into its order of epochs behind `after` (first where that is none).
void heap::enter(block_index i, block_index after) noexcept {
  const block& b = blocks_[i];
  owners_[b.owner].by_class[b.klass].insert(blocks_, i);
  enter_order(i, after);
  count_free(b, b.bytes);
  ++totals_.free_blocks;
  if (b.owner != idle_owner) {
    if (is_beside_idle(i)) note_beside_idle(i);
    return;
  }
  for (const block_index beside : {b.below, b.above}) {
    const bool is_owned = beside != no_block && blocks_[beside].state == block_state::free;
    if (is_owned && blocks_[beside].owner != idle_owner) note_beside_idle(beside);
  }
}

void heap::leave(block_index i) noexcept {
  const block& b = blocks_[i];
  owners_[b.owner].by_class[b.klass].erase(blocks_, i);
  leave_order(i);
  count_free(b, 0 - b.bytes);
  --totals_.free_blocks;
}

void heap::enter_order(block_index i, block_index after) noexcept {
  block& b = blocks_[i];
  owner& o = owners_[b.owner];
  if (o.oldest == no_block && b.owner != idle_owner) {
    o.place = static_cast<std::uint32_t>(free_owners_.size());
    free_owners_.push_back(b.owner);
  }
  b.in_index.older = after;
  block_index& newer = after != no_block ? blocks_[after].in_index.newer : o.oldest;
  b.in_index.newer = newer;
  newer = i;
  (b.in_index.newer != no_block ? blocks_[b.in_index.newer].in_index.older : o.newest) = i;
}

void heap::leave_order(block_index i) noexcept {
  const block& b = blocks_[i];
  owner& o = owners_[b.owner];
  (b.in_index.older != no_block ? blocks_[b.in_index.older].in_index.newer : o.oldest) = b.in_index.newer;
  (b.in_index.newer != no_block ? blocks_[b.in_index.newer].in_index.older : o.newest) = b.in_index.older;
  if (o.oldest == no_block && b.owner != idle_owner) {
    free_owners_[o.place] = free_owners_.back();
    owners_[free_owners_[o.place]].place = o.place;
    free_owners_.pop_back();
  }
}

// So many bytes more, modulo 2^64, in free blocks of that one's owner and class.
void heap::count_free(const block& b, std::uint64_t more) noexcept {
  (b.owner == idle_owner ? totals_.idle_bytes : totals_.cached_bytes) += more;
  by_class_[b.klass].free_bytes += more;
}

}  // namespace gpumem
