#include "planned.hpp"

#include <algorithm>
#include <new>

namespace gpumem {

bool planned::has_segment(const heap& in) noexcept {
  if (begin_ != 0) return true;
  const std::vector<heap_segment>& all = in.segments();
  for (segment_index s = 0; s < all.size(); ++s) {
    if (all[s].bytes < follower_->height_bytes() || all[s].klass != 0) continue;
    segment_ = s;
    begin_ = all[s].begin;
    return true;
  }
  return false;
}

std::optional<planned::place> planned::next(const heap& in, std::uint64_t bytes, std::uint64_t stream) {
  const std::optional<std::uint32_t> number = follower_->next(bytes, stream);
  if (!number || !has_segment(in)) return std::nullopt;
  return place{.number = *number, .begin = begin_ + follower_->offset(*number)};
}

planned::blocks planned::find(const heap& in, const place& at, std::uint64_t bytes, owner_id o) const {
  const std::optional<std::uint32_t> below = follower_->placed_at_or_below(at.number);
  block_index first = below ? *below : in.segments()[segment_].first;
  while (in.at(first).begin + in.at(first).bytes <= at.begin) first = in.at(first).above;
  blocks found;
  for (block_index i = first;; i = in.at(i).above) {
    if (i == no_block || in.at(i).state != block_state::free) return found;
    const owner_id whose = in.at(i).owner;
    const std::uint64_t epoch = in.at(i).in_index.epoch;
    if (whose != o && whose != idle_owner) {
      const auto known = std::ranges::find(found.others, whose, &other::owner);
      if (known == found.others.end()) {
        found.others.push_back({whose, epoch});
      } else {
        known->epoch = std::max(known->epoch, epoch);
      }
    }
    if (in.at(i).begin + in.at(i).bytes >= at.begin + bytes) break;
    found.several = true;
  }
  found.first = first;
  return found;
}

void planned::placed(const place& at, block_index i) noexcept {
  try {
    follower_->placed(at.number, i);
  } catch (const std::bad_alloc&) {
  }
}

}  // namespace gpumem
