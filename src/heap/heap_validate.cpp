// heap::validate: the invariants, each with its error message.

#include "heap.hpp"

namespace gpumem {
namespace {

status validate_segment(const heap& checked, segment_index segment, heap_counters* seen) {
  const heap_segment& seg = checked.segments()[segment];
  std::uint64_t position = seg.begin;
  std::uint64_t memory = seg.bytes;
  const block* before = nullptr;
  std::uint32_t small_blocks = 0;
  bool is_leaked = false;
  seen->add_segment();
  for (block_index i = seg.first; i != no_block; i = checked.at(i).next) {
    const block& b = checked.at(i);
    if (b.begin != position) return broken_heap("a gap or an overlap between neighbours", b.begin);
    if (b.bytes == 0 || b.bytes % 512 != 0) return broken_heap("a size that is no multiple of 512", b.begin);
    const bool is_linked = before != nullptr ? b.prev != no_block && &checked.at(b.prev) == before : b.prev == no_block;
    if (!is_linked || b.segment != segment || b.segment_class != seg.segment_class)
      return broken_heap("a wrong link or segment", b.begin);
    if (b.state == block_state::unused) return broken_heap("a record that stands for no block", b.begin);
    const bool repeats = before != nullptr && before->state == b.state;
    if (repeats && b.state == block_state::free && before->owner == b.owner)
      return broken_heap("two free neighbours of one owner that were not merged", b.begin);
    if (repeats && b.state == block_state::unbacked)
      return broken_heap("two unbacked neighbours that were not merged", b.begin);
    const bool is_in_use = b.state == block_state::live || b.state == block_state::fenced;
    if (is_in_use && whole_segments::is_small(seg.bytes, b.bytes)) ++small_blocks;
    is_leaked = is_leaked || b.state == block_state::leaked;
    seen->add(b);
    position += b.bytes;
    if (!has_memory(b)) memory -= b.bytes;
    before = &b;
  }
  if (position != seg.begin + seg.bytes) return broken_heap("blocks that do not cover their segment", seg.begin);
  // A block that leaks counts for ever if it was in use, and not if it was free.
  if (is_leaked ? small_blocks > seg.history.small_blocks : small_blocks != seg.history.small_blocks)
    return broken_heap("a wrong number of small blocks", seg.begin);
  seen->add_memory(seg.segment_class, memory);
  return {};
}

status validate_pieces(const heap& checked) {
  const piece_counter& pieces = checked.pieces();
  piece_totals seen;
  std::vector<region_totals> regions(pieces.owners());
  for (const heap_segment& segment : checked.segments()) {
    if (segment.bytes == 0) continue;
    for (block_index i = segment.first; i != no_block; i = checked.at(i).next) {
      const block& b = checked.at(i);
      if (b.in_region && (!has_memory(b) || b.state == block_state::leaked))
        return broken_heap("a block without an owner in a region", b.begin);
      if (b.state == block_state::free && b.in_region != pieces.is_region(b.owner))
        return broken_heap("a free block that does not follow its owner's region", b.begin);
      pieces.add(i, 1, &seen, &regions[b.owner]);
    }
  }
  if (seen != pieces.totals()) return broken_heap("pieces that differ from a walk, number", pieces.totals().pieces);
  for (owner_id owner = 0; owner < regions.size(); ++owner) {
    if (regions[owner] != pieces.of_region(owner))
      return broken_heap("a region that differs from a walk, owner", owner);
  }
  return {};
}

status validate_unbacked(const heap& checked, std::uint64_t bytes) {
  block_index older = no_block;
  for (block_index i = checked.unbacked().first(); i != no_block; older = i, i = checked.at(i).in_index.newer) {
    const block& b = checked.at(i);
    if (has_memory(b) || b.in_index.older != older) return broken_heap("a damaged list of unbacked", b.begin);
    bytes -= b.bytes;
  }
  if (bytes != 0) return broken_heap("unbacked blocks that are in no list, bytes", bytes);
  return {};
}

}  // namespace

status heap::validate() const {
  heap_counters walked{free_.classes()};
  for (segment_index s = 0; s < segments_.size(); ++s) {
    if (segments_[s].bytes == 0) continue;
    if (status ok = validate_segment(*this, s, &walked); !ok) return ok;
  }
  const heap_totals& seen = walked.totals();
  if (status ok = free_.validate(seen.free_blocks); !ok) return ok;
  if (status ok = validate_unbacked(*this, seen.unbacked_bytes); !ok) return ok;
  if (status ok = validate_pieces(*this); !ok) return ok;
  if (walked != counters_)
    return broken_heap("totals that differ from the blocks' sums, live bytes", totals().live_bytes);
  const std::uint64_t sum =
      seen.live_bytes + seen.cached_bytes + seen.idle_bytes + seen.fenced_bytes + seen.leaked_bytes;
  if (sum != seen.segment_bytes) return broken_heap("bytes lost or made, segments", seen.segment_bytes);
  return {};
}

}  // namespace gpumem
