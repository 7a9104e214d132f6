#include "pieces.hpp"

#include <cassert>

namespace gpumem {
void piece_counter::begin_region(owner_id owner) noexcept {
  assert(owner != idle_owner && !owners_[owner].was_region);
  owners_[owner].is_region = owners_[owner].was_region = true;
  ++regions_;
}

void piece_counter::end_region(owner_id owner, block_index oldest) noexcept {
  owners_[owner].is_region = false;
  for (block_index i = oldest; i != no_block; i = blocks_[i].in_index.newer) {
    const recount changed{*this, i, true};
    blocks_[i].in_region = false;
  }
}

void piece_counter::remove_owner(owner_id owner) noexcept {
  assert(owners_[owner].totals == region_totals{});
  if (owners_[owner].was_region) --regions_;
  owners_[owner] = {};
}

void piece_counter::set_owner(block_index index, owner_id owner) noexcept {
  block& b = blocks_[index];
  if (!has_regions()) {
    b.owner = owner;
    return;
  }
  const recount changed{*this, index, true};
  b.owner = owner;
  b.in_region = is_region(owner);
}

// Both blocks are in one piece. Most heaps have neither regions nor pages; then no neighbour's record is read.
bool piece_counter::joined(block_index low, block_index high) const noexcept {
  if (low == no_block || high == no_block) return false;
  if (!has_regions() && !has_unbacked_) return true;
  const block& a = blocks_[low];
  const block& b = blocks_[high];
  if (!has_memory(a) || !has_memory(b)) return false;
  return a.in_region == b.in_region && (!a.in_region || a.owner == b.owner);
}

void piece_counter::add(block_index index, std::uint64_t sign, piece_totals* totals,
                        region_totals* region) const noexcept {
  const block& b = blocks_[index];
  if (!has_memory(b)) return;
  const bool begins = !joined(b.prev, index);
  const bool undivided = begins && !joined(index, b.next);
  if (begins) totals->pieces += sign;
  if (undivided && b.state == block_state::live) {
    totals->undivided_live_blocks += sign;
  } else if (undivided && b.state != block_state::fenced) {
    totals->undivided_free_blocks += sign;
    totals->undivided_free_bytes += sign * b.bytes;
  }
  if (region == nullptr || !b.in_region) return;
  region->bytes += sign * b.bytes;
  if (b.state == block_state::live) region->live_bytes += sign * b.bytes;
}

// Widens the range from block `*first` to address `*end` to whole blocks: `*end` becomes the end of the last block in
// it. With `neighbours`, the range also takes in the block before `*first` and the block after the last one.
void piece_counter::widen(block_index* first, std::uint64_t* end, bool neighbours) const noexcept {
  const block* last = &blocks_[*first];
  while (last->begin + last->bytes < *end) last = &blocks_[last->next];
  if (neighbours && last->next != no_block) last = &blocks_[last->next];
  *end = last->begin + last->bytes;
  if (neighbours && blocks_[*first].prev != no_block) *first = blocks_[*first].prev;
}

void piece_counter::count(block_index first, std::uint64_t end, std::uint64_t sign) noexcept {
  for (block_index i = first; i != no_block && blocks_[i].begin < end; i = blocks_[i].next) {
    add(i, sign, &totals_, &owners_[blocks_[i].owner].totals);
  }
}

}  // namespace gpumem
