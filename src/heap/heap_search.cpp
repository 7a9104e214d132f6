// Searches of a heap: for a place, for the block at a position, for the largest free block. Nothing changes.
#include "heap.hpp"

namespace gpumem {

block_index heap::best_fit(unsigned segment_class, owner_id owner, bool idle_too, std::uint64_t bytes,
                           std::uint64_t alignment) const noexcept {
  const auto search = [&](owner_id candidate) {
    const free_index& index = owners_[candidate].by_class[segment_class];
    if (index.empty()) return no_block;
    block_index found = index.best_fit(blocks_, bytes);
    if (alignment <= 512 || found == no_block) return found;
    const block& b = blocks_[found];
    if (lead(b.begin, alignment) + bytes <= b.bytes) return found;
    return index.best_fit(blocks_, bytes + alignment - 512);
  };
  const block_index own = search(owner);
  if (!idle_too || owner == idle_owner) return own;
  const block_index idle = search(idle_owner);
  if (own == no_block || idle == no_block) return own != no_block ? own : idle;
  return blocks_[own].bytes <= blocks_[idle].bytes ? own : idle;
}

block_index heap::lowest_fit(unsigned segment_class, owner_id owner, std::uint64_t bytes,
                             std::uint64_t alignment) const noexcept {
  const block_index best = best_fit(segment_class, owner, true, bytes, alignment);
  if (best == no_block || blocks_[best].bytes == bytes) return best;
  const std::uint64_t least = bytes + (alignment - 512);
  const block_index own = owners_[owner].by_class[segment_class].lowest_fit(blocks_, least);
  const block_index idle = owners_[idle_owner].by_class[segment_class].lowest_fit(blocks_, least);
  if (own == no_block && idle == no_block) return best;
  if (own == no_block || idle == no_block) return own != no_block ? own : idle;
  return blocks_[own].begin < blocks_[idle].begin ? own : idle;
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

std::uint64_t heap::largest_free() const noexcept {
  std::uint64_t most = 0;
  const auto look_at = [&](owner_id owner) {
    for (const free_index& index : owners_[owner].by_class) {
      const block_index i = index.largest(blocks_);
      if (i != no_block && blocks_[i].bytes > most) most = blocks_[i].bytes;
    }
  };
  look_at(idle_owner);
  for (const owner_id owner : free_owners_) look_at(owner);
  return most;
}

}  // namespace gpumem
