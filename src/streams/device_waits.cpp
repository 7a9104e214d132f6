#include "device_waits.hpp"

#include <algorithm>
#include <new>

#include "without_exceptions.hpp"

namespace gpumem {

device_waits::~device_waits() {
  for (const wait& w : waits_) {
    in_.let_go(w.behind);
    if (w.of != idle_owner) --in_[w.of].references;
  }
}

bool device_waits::behind(owner_id o, std::uint64_t epoch) noexcept try {
  if (waited(o) >= epoch) return true;
  const auto noted = [&](const wait& w) { return w.of == o && w.epoch >= epoch; };
  if (rounds_ == most_rounds || std::ranges::any_of(waits_, noted)) return false;
  in_[waiter_].waited.try_emplace(o);  // so that `note` needs no memory
  make_room(waits_);
  const result<fence_index> f = in_.cover(o, epoch);
  if (!f) return false;
  const std::uint64_t covered = *f == no_fence ? in_[o].epoch - 1 : in_.epoch_of(o, *f);
  using state = tracked_fence::state;
  const state seen = *f == no_fence ? state::done : in_.tracked(*f).seen;
  if (seen == state::pending || seen == state::unrecorded) {
    waits_.push_back({.behind = *f, .of = o, .epoch = covered});
    ++in_[o].references;
    return false;
  }
  if (*f != no_fence) in_.let_go(*f);
  if (seen == state::done) note(o, covered);
  return seen == state::done && covered >= epoch;
} catch (const std::bad_alloc&) {  // the memory is not served this way
  return false;
}

void device_waits::note(owner_id o, std::uint64_t epoch) noexcept {
  std::uint64_t& upto = in_[waiter_].waited.find(o)->second;
  upto = std::max(upto, epoch);
}

void device_waits::tried(wait& w, bool made) noexcept {
  w.is = made ? wait::state::made : wait::state::refused;
  if (made && w.of != idle_owner) note(w.of, w.epoch);
}

bool device_waits::behind_fence(fence_index f) noexcept try {
  const tracked_fence& asked = in_.tracked(f);
  if (asked.seen == tracked_fence::state::done) return true;
  if (asked.seen == tracked_fence::state::failed) return false;
  if (const auto latest = latest_.find(asked.order); latest != latest_.end() && !asked.foreign) {
    const wait& w = waits_[latest->second];
    if (in_.tracked(w.behind).number >= asked.number) return w.is == wait::state::made;
  }
  if (asked.foreign) {
    const auto same =
        std::ranges::find_if(waits_, [&](const wait& w) { return w.behind == f && w.is != wait::state::missing; });
    if (same != waits_.end()) return same->is == wait::state::made;
  }
  if (rounds_ == most_rounds) return false;
  make_room(waits_);
  if (!asked.foreign) latest_[asked.order] = waits_.size();
  waits_.push_back({.behind = f});
  in_.hold(f);
  return false;
} catch (const std::bad_alloc&) {
  return false;
}

bool device_waits::missing() const noexcept {
  return std::ranges::any_of(waits_, [](const wait& w) { return w.is == wait::state::missing; });
}

}  // namespace gpumem
