#include "fence_calls.hpp"

namespace gpumem {

void fence_calls::poll(arena_lock& lock) {
  {
    const device::calls_together row{in_.on};
    in_.streams.poll();  // first: what is done on the owner's stream lets a fenced block go to everybody at once
    in_.uses.poll();
  }
  record(lock);
}

void fence_calls::record(arena_lock& lock) {
  const std::vector<unrecorded_fence> fences = in_.streams.take_unrecorded();
  if (fences.empty()) return;
  const device::calls_together row{in_.on};
  const unsigned captures = in_.streams.captures();
  for (const unrecorded_fence& f : fences) {
    const bool overtaken = in_.streams.captures() > captures;
    std::optional<fence> recorded;
    if (!overtaken) {
      const result<fence> made = in_.records.make(lock, [&] { return in_.streams.record_on_device(f); });
      if (made) recorded = *made;
    }
    in_.streams.recorded(f, recorded);
  }
}

void fence_calls::order(arena_lock& lock, device_waits& waits) {
  record(lock);
  const device::calls_together row{in_.on};
  const unsigned captures = in_.streams.captures();
  using state = device_waits::wait::state;
  for (device_waits::wait& w : waits.begin_round()) {
    if (w.is != state::missing) continue;
    waits.tried(w, in_.streams.captures() <= captures && order_one(lock, waits.waiter(), w.behind));
  }
}

// False where the fence has failed, or another thread has not recorded it yet.
bool fence_calls::order_one(arena_lock& lock, owner_id waiter, fence_index f) {
  const tracked_fence behind = in_.streams.tracked(f);
  if (behind.seen != tracked_fence::state::pending) return behind.seen == tracked_fence::state::done;
  const stream_ref on = in_.streams[waiter].stream;
  const status made = in_.records.make(lock, [&] { return in_.on.wait_stream(on, behind.device_fence); });
  if (made) ++in_.counts.device_waits;
  return made.ok();
}

void fence_calls::wait_for(arena_lock& lock, fence_index f) {
  if (in_.streams.tracked(f).seen != tracked_fence::state::pending) return;
  const fence on_device = in_.streams.tracked(f).device_fence;
  if (!in_.streams.may_wait_for(f)) return;
  const status waited = in_.waits.make(lock, [&] { return in_.on.wait_host(on_device); });
  if (waited.code() == errc::unsupported || waited.code() == errc::host_failure) return;
  ++in_.counts.host_waits;
  in_.streams.tracked(f).seen = waited ? tracked_fence::state::done : tracked_fence::state::failed;
}

void fence_calls::wait_for_owner(arena_lock& lock, owner_id o) {
  held_fences behind{in_.streams};
  behind.add_cover_of(o);
  record(lock);
  for (const fence_index f : behind.all()) {
    const bool others_record = in_.streams.tracked(f).seen == tracked_fence::state::unrecorded;
    if (others_record) in_.records.wait_for_none(lock);
    wait_for(lock, f);
  }
  poll(lock);
}

bool fence_calls::wait_for_all(arena_lock& lock) {
  if (in_.streams.captures() > 0) return false;
  {
    held_fences held{in_.streams};
    for (owner_id o = 1; o < in_.streams.end(); ++o) {
      if (in_.streams.serves_others(o) && !in_.blocks.owns_nothing(o)) held.add_cover_of(o);
    }
    in_.uses.hold_fences(&held);
    record(lock);
    in_.records.wait_for_none(lock);  // other threads'
    if (held.all().empty()) return false;
    for (const fence_index f : held.all()) wait_for(lock, f);
  }
  poll(lock);
  return true;
}

}  // namespace gpumem
