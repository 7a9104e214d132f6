// heap::validate: the invariants, each with its error message.
#include <fmt/format.h>

#include <algorithm>

#include "heap.hpp"

namespace gpumem {
namespace {

status broken(std::string_view message, std::uint64_t position) {
  return {errc::corrupt, fmt::format("heap: {} at {:#x}", message, position)};
}

}  // namespace

status heap::validate_segment(segment_index segment, heap_totals* seen) const {
  const heap_segment& seg = segments_[segment];
  std::uint64_t position = seg.begin;
  block_index before = no_block;
  const std::uint64_t unbacked_before = seen->unbacked_bytes;
  for (block_index i = seg.first; i != no_block; before = i, i = blocks_[i].next) {
    const block& b = blocks_[i];
    if (b.begin != position) return broken("a gap or an overlap between neighbours", b.begin);
    if (b.bytes == 0 || b.bytes % 512 != 0) return broken("a size that is no multiple of 512", b.begin);
    if (b.prev != before || b.segment != segment || b.segment_class != seg.segment_class)
      return broken("a wrong link or segment", b.begin);
    position += b.bytes;
    switch (b.state) {
      case block_state::live:
        seen->live_bytes += b.bytes;
        ++seen->live_blocks;
        break;
      case block_state::free:
        (b.owner == idle_owner ? seen->idle_bytes : seen->cached_bytes) += b.bytes;
        ++seen->free_blocks;
        if (before != no_block && blocks_[before].state == block_state::free && blocks_[before].owner == b.owner)
          return broken("two free neighbours of one owner that were not merged", b.begin);
        break;
      case block_state::fenced:
        seen->fenced_bytes += b.bytes;
        ++seen->fenced_blocks;
        break;
      case block_state::leaked:
        seen->leaked_bytes += b.bytes;
        ++seen->leaked_blocks;
        break;
      case block_state::unbacked:
        seen->unbacked_bytes += b.bytes;
        if (before != no_block && blocks_[before].state == block_state::unbacked)
          return broken("two unbacked neighbours that were not merged", b.begin);
        break;
      case block_state::unused:
        return broken("a record that stands for no block", b.begin);
    }
  }
  if (position != seg.begin + seg.bytes) return broken("blocks that do not cover their segment", seg.begin);
  const std::uint64_t memory = seg.bytes - (seen->unbacked_bytes - unbacked_before);
  seen->segment_bytes += memory;
  if (memory != 0) ++seen->segments;
  return {};
}

status heap::validate_pieces() const {
  piece_totals seen;
  std::vector<region_totals> regions(owners_.size());
  for (const heap_segment& segment : segments_) {
    if (segment.bytes == 0) continue;
    for (block_index i = segment.first; i != no_block; i = blocks_[i].next) {
      const block& b = blocks_[i];
      if (b.in_region && (b.state == block_state::unbacked || b.state == block_state::leaked))
        return broken("a block without an owner in a region", b.begin);
      if (b.state == block_state::free && b.in_region != pieces_.is_region(b.owner))
        return broken("a free block that does not follow its owner's region", b.begin);
      pieces_.add(i, 1, &seen, &regions[b.owner]);
    }
  }
  if (seen != pieces_.totals()) return broken("pieces that differ from a walk, number", pieces_.totals().pieces);
  for (owner_id owner = 0; owner < owners_.size(); ++owner) {
    if (regions[owner] != pieces_.of_region(owner)) return broken("a region that differs from a walk, owner", owner);
  }
  return {};
}

// Checks that `absorb_idle` finds every block that it has to merge.
status heap::validate_beside_idle(owner_id owner) const {
  if (owner == idle_owner || owners_[owner].any_beside_idle) return {};
  std::vector<block_index> noted = owners_[owner].beside_idle;
  std::ranges::sort(noted);
  for (block_index i = owners_[owner].oldest; i != no_block; i = blocks_[i].in_index.newer) {
    if (is_beside_idle(i) && !std::ranges::binary_search(noted, i))
      return broken("a block with an idle neighbour that is not noted", blocks_[i].begin);
  }
  return {};
}

status heap::validate() const {
  heap_totals seen;
  for (segment_index s = 0; s < segments_.size(); ++s) {
    if (segments_[s].bytes == 0) continue;
    if (status ok = validate_segment(s, &seen); !ok) return ok;
  }
  std::uint64_t listed = 0;
  for (owner_id owner = 0; owner < owners_.size(); ++owner) {
    std::uint64_t indexed = 0;
    for (const free_index& index : owners_[owner].by_class) {
      if (!index.valid(blocks_)) return broken("a damaged index of owner", owner);
      indexed += index.size();
    }
    std::uint64_t ordered = 0;
    std::uint64_t epoch = 0;
    for (block_index i = owners_[owner].oldest; i != no_block; i = blocks_[i].in_index.newer) {
      const block& b = blocks_[i];
      if (b.state != block_state::free || b.owner != owner) return broken("a block in another owner's list", b.begin);
      if (b.in_index.epoch < epoch) return broken("an owner's list out of order", b.begin);
      epoch = b.in_index.epoch;
      ++ordered;
    }
    if (ordered != indexed) return broken("an owner whose list and index differ, owner", owner);
    if (!owners_[owner].in_use && indexed != 0) return broken("blocks of an owner that is gone, owner", owner);
    const bool is_listed = owners_[owner].place < free_owners_.size() && free_owners_[owners_[owner].place] == owner;
    if (owner != idle_owner && is_listed != (indexed != 0)) return broken("a damaged list of owners, owner", owner);
    if (status ok = validate_beside_idle(owner); !ok) return ok;
    listed += indexed;
  }
  std::uint64_t unbacked = 0;
  block_index older = no_block;
  for (block_index i = unbacked_; i != no_block; older = i, i = blocks_[i].in_index.newer) {
    const block& b = blocks_[i];
    if (b.state != block_state::unbacked || b.in_index.older != older)
      return broken("a damaged list of unbacked", b.begin);
    unbacked += b.bytes;
  }
  if (unbacked != seen.unbacked_bytes)
    return broken("unbacked blocks that are in no list, bytes", seen.unbacked_bytes - unbacked);
  if (listed != seen.free_blocks) return broken("free blocks that no index holds, count", seen.free_blocks - listed);
  if (status ok = validate_pieces(); !ok) return ok;
  if (seen != totals_) return broken("totals that differ from the blocks' sums, live bytes", totals_.live_bytes);
  const std::uint64_t sum =
      seen.live_bytes + seen.cached_bytes + seen.idle_bytes + seen.fenced_bytes + seen.leaked_bytes;
  if (sum != seen.segment_bytes) return broken("bytes lost or made, segments", seen.segment_bytes);
  return {};
}

}  // namespace gpumem
