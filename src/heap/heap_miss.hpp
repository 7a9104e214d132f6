// What every miss runs through: best fit, cut off, give back, merge.
//
// Inline, so that a request and a free that go to the heap are one function each of the pool's: as calls of one another
// they made an operation of a trace 6 to 10 % slower (docs/performance.md). heap.hpp includes it, and says what they
// do.
#pragma once

#include <cassert>

#include "heap.hpp"

namespace gpumem {

inline block_index heap::best_fit(unsigned klass, owner_id o, bool idle_too, std::uint64_t bytes,
                                  std::uint64_t alignment) const noexcept {
  const auto search = [&](owner_id whose) {
    const free_index& index = owners_[whose].by_class[klass];
    if (index.empty()) return no_block;
    block_index found = index.best_fit(blocks_, bytes);
    if (alignment <= granularity || found == no_block) return found;
    const block& b = blocks_[found];
    if (lead(b.begin, alignment) + bytes <= b.bytes) return found;
    return index.best_fit(blocks_, bytes + alignment - granularity);
  };
  const block_index own = search(o);
  if (!idle_too || o == idle_owner) return own;
  const block_index idle = search(idle_owner);
  if (own == no_block || idle == no_block) return own != no_block ? own : idle;
  return blocks_[own].bytes <= blocks_[idle].bytes ? own : idle;
}

inline block_index heap::carve(block_index from, std::uint64_t bytes, std::uint64_t alignment) {
  const std::uint64_t front = alignment <= granularity ? 0 : lead(blocks_[from].begin, alignment);
  assert(front + bytes <= blocks_[from].bytes);
  block_index taken = from;
  if (front != 0) {
    taken = cut_off(from, front, bytes);
  } else if (bytes != blocks_[from].bytes) {
    taken = cut_off_first(from, bytes);
  } else {
    leave(from);
  }
  block& b = blocks_[taken];
  b.state = block_state::live;
  b.in_use = use_record{};
  totals_.live_bytes += b.bytes;
  ++totals_.live_blocks;
  return taken;
}

// The first bytes of a free block as a block of its own. The rest keeps its place in the order of epochs.
inline block_index heap::cut_off_first(block_index from, std::uint64_t bytes) {
  const block_index taken = blocks_.take();
  block& rest = blocks_[from];
  block& cut = blocks_[taken];
  cut.segment = rest.segment;
  cut.klass = rest.klass;
  cut.owner = rest.owner;
  cut.begin = rest.begin;
  cut.bytes = bytes;
  cut.below = rest.below;
  cut.above = from;
  (cut.below != no_block ? blocks_[cut.below].above : segments_[rest.segment].first) = taken;
  rest.below = taken;
  free_index& index = owners_[rest.owner].by_class[rest.klass];
  index.erase(blocks_, from);
  rest.begin += bytes;
  rest.bytes -= bytes;
  index.insert(blocks_, from);
  count_free(rest, 0 - bytes);
  return taken;
}

inline void heap::release(block_index i, owner_id o, std::uint32_t epoch, bool idle_too) noexcept {
  const block& b = blocks_[i];
  assert(b.state == block_state::live || b.state == block_state::fenced);
  if (b.state == block_state::live) {
    totals_.live_bytes -= b.bytes;
    --totals_.live_blocks;
  } else {
    totals_.fenced_bytes -= b.bytes;
  }
  make_free(i, o, epoch, idle_too);
}

inline bool heap::joins(block_index neighbour, owner_id o, bool idle_too) const noexcept {
  if (neighbour == no_block) return false;
  const block& n = blocks_[neighbour];
  return n.state == block_state::free && (n.owner == o || (idle_too && n.owner == idle_owner));
}

inline void heap::make_free(block_index i, owner_id o, std::uint32_t epoch, bool idle_too) noexcept {
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
inline void heap::merge_above(block_index i) noexcept {
  block& b = blocks_[i];
  const block_index above = b.above;
  const block& a = blocks_[above];
  b.bytes += a.bytes;
  b.above = a.above;
  if (b.above != no_block) blocks_[b.above].below = i;
  blocks_.give(above);
}

// Into the index of the block's owner, and into its order of epochs behind `after` (first where that is none).
inline void heap::enter(block_index i, block_index after) noexcept {
  const block& b = blocks_[i];
  owners_[b.owner].by_class[b.klass].insert(blocks_, i);
  enter_order(i, after);
  count_free(b, b.bytes);
  ++totals_.free_blocks;
}

inline void heap::leave(block_index i) noexcept {
  const block& b = blocks_[i];
  owners_[b.owner].by_class[b.klass].erase(blocks_, i);
  leave_order(i);
  count_free(b, 0 - b.bytes);
  --totals_.free_blocks;
}

inline void heap::enter_order(block_index i, block_index after) noexcept {
  block& b = blocks_[i];
  owner& o = owners_[b.owner];
  b.in_index.older = after;
  block_index& newer = after != no_block ? blocks_[after].in_index.newer : o.oldest;
  b.in_index.newer = newer;
  newer = i;
  (b.in_index.newer != no_block ? blocks_[b.in_index.newer].in_index.older : o.newest) = i;
}

inline void heap::leave_order(block_index i) noexcept {
  const block& b = blocks_[i];
  owner& o = owners_[b.owner];
  (b.in_index.older != no_block ? blocks_[b.in_index.older].in_index.newer : o.oldest) = b.in_index.newer;
  (b.in_index.newer != no_block ? blocks_[b.in_index.newer].in_index.older : o.newest) = b.in_index.older;
}

// So many bytes more, modulo 2^64, in free blocks of that one's owner and class.
inline void heap::count_free(const block& b, std::uint64_t more) noexcept {
  (b.owner == idle_owner ? totals_.idle_bytes : totals_.cached_bytes) += more;
  by_class_[b.klass].free_bytes += more;
}

}  // namespace gpumem
