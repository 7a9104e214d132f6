#include "plan_cursor.hpp"

#include <algorithm>
#include <new>

namespace gpumem {

bool plan_cursor::has_segment(const heap& pool_heap) noexcept {
  if (begin_ != 0) return true;
  const std::vector<heap_segment>& all = pool_heap.segments();
  for (segment_index s = 0; s < all.size(); ++s) {
    if (all[s].bytes < matcher_->height_bytes() || all[s].segment_class != 0) continue;
    segment_ = s;
    begin_ = all[s].begin;
    return true;
  }
  return false;
}

std::optional<plan_cursor::place> plan_cursor::next(const heap& pool_heap, std::uint64_t bytes, std::uint64_t stream) {
  const std::optional<std::uint32_t> number = matcher_->next(bytes, stream);
  if (!number || !has_segment(pool_heap)) return std::nullopt;
  return place{.number = *number, .begin = begin_ + matcher_->offset(*number)};
}

plan_cursor::blocks plan_cursor::find(const heap& pool_heap, const place& target, std::uint64_t bytes,
                                      owner_id owner) const {
  const std::optional<std::uint32_t> lower_block = matcher_->placed_at_or_below(target.number);
  block_index first = lower_block ? *lower_block : pool_heap.segments()[segment_].first;
  while (pool_heap.at(first).begin + pool_heap.at(first).bytes <= target.begin) first = pool_heap.at(first).next;
  blocks found;
  for (block_index i = first;; i = pool_heap.at(i).next) {
    if (i == no_block || pool_heap.at(i).state != block_state::free) return found;
    const owner_id block_owner = pool_heap.at(i).owner;
    const std::uint64_t epoch = pool_heap.at(i).in_index.epoch;
    if (block_owner != owner && block_owner != idle_owner) {
      const auto known = std::ranges::find(found.other_owners, block_owner, &other::owner);
      if (known == found.other_owners.end()) {
        found.other_owners.push_back({block_owner, epoch});
      } else {
        known->epoch = std::max(known->epoch, epoch);
      }
    }
    if (pool_heap.at(i).begin + pool_heap.at(i).bytes >= target.begin + bytes) break;
    found.several = true;
  }
  found.first = first;
  return found;
}

void plan_cursor::placed(const place& target, block_index block) noexcept {
  try {
    matcher_->placed(target.number, block);
  } catch (const std::bad_alloc&) {
  }
}

}  // namespace gpumem
