#include "depot.hpp"

#include <algorithm>

#include "gpumem/request.hpp"

namespace gpumem {

bool depot::put(owner_id o, std::uint32_t units, const slot_index* first, std::uint32_t count) {
  if (o >= by_owner_.size()) by_owner_.resize(o + 1);
  std::vector<place>& places = by_owner_[o];
  if (places.empty()) places.resize(bin_places::all);
  place& p = places[bin_places::of(units)];
  if (p.batches == most_batches || (p.batches != 0 && p.units != units)) return false;
  std::uint32_t b = spare_;
  if (b == no_block) {
    b = static_cast<std::uint32_t>(links_.size());
    if (held_.size() == b) held_.emplace_back();  // one more than links, where the host was short last time
    links_.emplace_back();
  } else {
    spare_ = links_[b].next;
  }
  std::copy_n(first, count, held_[b].held.begin());
  links_[b] = {.count = count, .next = no_block};
  (p.batches == 0 ? p.first : links_[p.last].next) = b;
  p.last = b;
  p.units = units;
  ++p.batches;
  ++batches_by_size_[units % sizes];
  blocks_ += count;
  bytes_ += std::uint64_t{count} * units * block_granularity;
  return true;
}

depot::blocks depot::take_from(place& p) noexcept {
  const std::uint32_t b = p.first;
  const blocks taken = batch_at(b);
  p.first = links_[b].next;
  --p.batches;
  --batches_by_size_[p.units % sizes];
  links_[b].next = spare_;
  spare_ = b;
  blocks_ -= taken.size();
  bytes_ -= std::uint64_t{taken.size()} * p.units * block_granularity;
  return taken;
}

bool depot::holds(owner_id o, std::uint32_t units) const noexcept {
  if (o >= by_owner_.size() || by_owner_[o].empty()) return false;
  const place& p = by_owner_[o][bin_places::of(units)];
  return p.batches != 0 && p.units == units;
}

depot::blocks depot::take(owner_id o, std::uint32_t units) noexcept {
  return holds(o, units) ? take_from(by_owner_[o][bin_places::of(units)]) : blocks{};
}

depot::blocks depot::take_any(owner_id o) noexcept {
  if (o >= by_owner_.size()) return {};
  for (place& p : by_owner_[o]) {
    if (p.batches != 0) return take_from(p);
  }
  return {};
}

std::uint64_t depot::metadata_bytes() const noexcept {
  std::uint64_t bytes = held_.capacity() * sizeof(batch_of_slots) + links_.capacity() * sizeof(link) +
                        by_owner_.capacity() * sizeof(by_owner_[0]);
  for (const auto& places : by_owner_) bytes += places.capacity() * sizeof(place);
  return bytes;
}

}  // namespace gpumem
