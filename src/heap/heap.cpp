#include "heap.hpp"

#include <cassert>

namespace gpumem {

heap::heap(unsigned classes) : classes_{classes}, by_class_(classes) { add_owner(); }

owner_id heap::add_owner() {
  owner_id o = 0;
  if (!spare_owners_.empty()) {
    o = spare_owners_.back();
    spare_owners_.pop_back();
  } else {
    o = static_cast<owner_id>(owners_.size());
    owners_.emplace_back();
    owners_.back().by_class.resize(classes_);
    spare_owners_.reserve(owners_.capacity());  // so that remove_owner need not allocate
  }
  owners_[o].in_use = true;
  return o;
}

void heap::remove_owner(owner_id o) noexcept {
  assert(o != idle_owner && owns_nothing(o));
  owners_[o].in_use = false;
  spare_owners_.push_back(o);
}

segment_index heap::take_segment() {
  if (!spare_segments_.empty()) {
    const segment_index s = spare_segments_.back();
    spare_segments_.pop_back();
    return s;
  }
  segments_.emplace_back();
  spare_segments_.reserve(segments_.capacity());
  return static_cast<segment_index>(segments_.size() - 1);
}

segment_index heap::add_segment(std::uint64_t begin, std::uint64_t bytes, unsigned klass) {
  const segment_index s = take_segment();
  const block_index i = blocks_.take();
  block& b = blocks_[i];
  b.begin = begin;
  b.bytes = bytes;
  b.segment = s;
  b.klass = static_cast<std::uint8_t>(klass);
  segments_[s] = {begin, bytes, i, b.klass};
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

// Bytes from the middle of a free block, or its end; what is cut off in front keeps the place in the order of epochs
// that the whole had; so does the rest behind.
block_index heap::cut_off(block_index from, std::uint64_t front, std::uint64_t bytes) {
  const block_index taken = blocks_.take();
  block& cut = blocks_[taken];
  const block_index order_before = blocks_[from].in_index.older;
  leave(from);
  block& head = blocks_[from];
  cut.segment = head.segment;
  cut.klass = head.klass;
  cut.owner = head.owner;
  cut.begin = head.begin + front;
  cut.bytes = bytes;
  cut.below = from;
  block_index tail = no_block;
  if (const std::uint64_t behind = head.bytes - front - bytes; behind != 0) {
    tail = blocks_.take();
    block& t = blocks_[tail];
    t.segment = head.segment;
    t.klass = head.klass;
    t.owner = head.owner;
    t.begin = head.begin + front + bytes;
    t.bytes = behind;
    t.state = block_state::free;
    t.in_index.epoch = head.in_index.epoch;
    t.below = taken;
    t.above = head.above;
    if (t.above != no_block) blocks_[t.above].below = tail;
  }
  cut.above = tail != no_block ? tail : head.above;
  if (cut.above != no_block) blocks_[cut.above].below = taken;
  head.above = taken;
  head.bytes = front;
  enter(from, order_before);
  if (tail != no_block) enter(tail, order_before);
  return taken;
}

void heap::fence(block_index i) noexcept {
  block& b = blocks_[i];
  assert(b.state == block_state::live);
  b.state = block_state::fenced;
  totals_.live_bytes -= b.bytes;
  --totals_.live_blocks;
  totals_.fenced_bytes += b.bytes;
}

void heap::leak(block_index i) noexcept {
  block& b = blocks_[i];
  if (b.state == block_state::live) {
    totals_.live_bytes -= b.bytes;
    --totals_.live_blocks;
  } else {
    assert(b.state == block_state::fenced);
    totals_.fenced_bytes -= b.bytes;
  }
  b.state = block_state::leaked;
  totals_.leaked_bytes += b.bytes;
}

void heap::settle(owner_id o, std::uint32_t done, bool lost) noexcept {
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

void heap::hand_over(owner_id from, owner_id to, std::uint32_t epoch, bool idle_too) noexcept {
  while (owners_[from].oldest != no_block) {
    const block_index i = owners_[from].oldest;
    leave(i);
    make_free(i, to, epoch, idle_too);
  }
}

bool heap::absorb_idle(owner_id o) noexcept {
  bool changed = false;
  for (block_index i = owners_[o].oldest; i != no_block;) {
    if (!joins(blocks_[i].below, idle_owner, false) && !joins(blocks_[i].above, idle_owner, false)) {
      i = blocks_[i].in_index.newer;
      continue;
    }
    // The whole run of blocks that are free for `o` or for everybody becomes one, as late as the owner's latest.
    const std::uint32_t epoch = blocks_[owners_[o].newest].in_index.epoch;
    block_index first = i;
    while (joins(blocks_[first].below, o, true)) first = blocks_[first].below;
    std::uint64_t end = blocks_[i].begin + blocks_[i].bytes;
    for (block_index at = i; joins(blocks_[at].above, o, true);) {
      at = blocks_[at].above;
      end += blocks_[at].bytes;
    }
    const std::uint64_t begin = blocks_[first].begin;
    do {
      i = blocks_[i].in_index.newer;
    } while (i != no_block && blocks_[i].begin >= begin && blocks_[i].begin < end);
    leave(first);
    make_free(first, o, epoch, true);
    changed = true;
  }
  return changed;
}

block_index heap::containing(std::uint64_t position) const noexcept {
  for (const heap_segment& s : segments_) {
    if (s.bytes == 0 || position < s.begin || position >= s.begin + s.bytes) continue;
    block_index i = s.first;
    while (position >= blocks_[i].begin + blocks_[i].bytes) i = blocks_[i].above;
    return i;
  }
  return no_block;
}

std::uint64_t heap::largest_free() const noexcept {
  std::uint64_t most = 0;
  for (const owner& o : owners_) {
    for (const free_index& index : o.by_class) {
      const block_index i = index.largest(blocks_);
      if (i != no_block && blocks_[i].bytes > most) most = blocks_[i].bytes;
    }
  }
  return most;
}

std::uint64_t heap::metadata_bytes() const noexcept {
  return blocks_.bytes() + owners_.capacity() * sizeof(owner) + owners_.size() * classes_ * sizeof(free_index) +
         segments_.capacity() * sizeof(heap_segment);
}

}  // namespace gpumem
