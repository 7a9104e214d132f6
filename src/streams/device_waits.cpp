#include "device_waits.hpp"

#include <algorithm>
#include <new>

#include "without_exceptions.hpp"

namespace gpumem {

device_waits::~device_waits() {
  for (const wait& w : waits_) {
    streams_.fences().unref(w.fence);
    if (w.owner != idle_owner) --streams_[w.owner].references;
  }
}

bool device_waits::behind(owner_id owner, std::uint64_t epoch) noexcept try {
  if (waited(owner) >= epoch) return true;
  const auto noted = [&](const wait& entry) { return entry.owner == owner && entry.epoch >= epoch; };
  if (rounds_ == most_rounds || std::ranges::any_of(waits_, noted)) return false;
  streams_[waiter_].waited.try_emplace(owner);  // so that `note` needs no memory
  make_room(waits_);
  const result<fence_index> f = streams_.cover(owner, epoch);
  if (!f) return false;
  const std::uint64_t covered = *f == no_fence ? streams_[owner].epoch - 1 : streams_.epoch_of(owner, *f);
  using state = tracked_fence::state;
  const state seen = *f == no_fence ? state::done : streams_.fences()[*f].status;
  if (seen == state::pending || seen == state::unrecorded) {
    waits_.push_back({.fence = *f, .owner = owner, .epoch = covered});
    ++streams_[owner].references;
    return false;
  }
  if (*f != no_fence) streams_.fences().unref(*f);
  if (seen == state::done) note(owner, covered);
  return seen == state::done && covered >= epoch;
} catch (const std::bad_alloc&) {  // the caller gets its memory elsewhere
  return false;
}

void device_waits::note(owner_id owner, std::uint64_t epoch) noexcept {
  std::uint64_t& upto = streams_[waiter_].waited.find(owner)->second;
  upto = std::max(upto, epoch);
}

void device_waits::tried(wait& entry, bool made) noexcept {
  entry.status = made ? wait::state::made : wait::state::refused;
  if (made && entry.owner != idle_owner) note(entry.owner, entry.epoch);
}

bool device_waits::behind_fence(fence_index fence) noexcept try {
  const tracked_fence& asked = streams_.fences()[fence];
  if (asked.status == tracked_fence::state::done) return true;
  if (asked.status == tracked_fence::state::failed) return false;
  if (const auto latest = latest_.find(asked.order); latest != latest_.end() && !asked.foreign) {
    const wait& w = waits_[latest->second];
    if (streams_.fences()[w.fence].number >= asked.number) return w.status == wait::state::made;
  }
  if (asked.foreign) {
    const auto same = std::ranges::find_if(
        waits_, [&](const wait& entry) { return entry.fence == fence && entry.status != wait::state::missing; });
    if (same != waits_.end()) return same->status == wait::state::made;
  }
  if (rounds_ == most_rounds) return false;
  make_room(waits_);
  if (!asked.foreign) latest_[asked.order] = waits_.size();
  waits_.push_back({.fence = fence});
  streams_.fences().ref(fence);
  return false;
} catch (const std::bad_alloc&) {
  return false;
}

bool device_waits::missing() const noexcept {
  return std::ranges::any_of(waits_, [](const wait& entry) { return entry.status == wait::state::missing; });
}

}  // namespace gpumem
