#include "fence_calls.hpp"

namespace gpumem {

void fence_calls::poll(arena_lock& lock) {
  {
    const device::calls_together row{in_.on};
    const stream_order::later unlocked{in_.streams};
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
    in_.streams.recorded(f, overtaken ? std::nullopt : record_one(lock, f));
  }
}

std::optional<fence> fence_calls::record_one(arena_lock& lock, const unrecorded_fence& f) {
  const blocking_call waits{in_.calls.records, lock};
  const result<fence> made = in_.streams.record_on_device(f);
  return made ? std::optional{*made} : std::nullopt;
}

void fence_calls::wait_for(arena_lock& lock, fence_index f) {
  if (in_.streams.tracked(f).seen != tracked_fence::state::pending) return;
  const fence on_device = in_.streams.tracked(f).device_fence;
  if (!in_.streams.may_wait_for(f)) return;
  status waited;
  {
    const blocking_call waits{in_.calls.waits, lock};
    waited = in_.on.wait_host(on_device);
  }
  if (waited.code() == errc::unsupported || waited.code() == errc::host_failure) return;
  ++in_.counts.host_waits;
  in_.streams.tracked(f).seen = waited ? tracked_fence::state::done : tracked_fence::state::failed;
}

void fence_calls::wait_for_owner(arena_lock& lock, owner_id o) {
  held_fences behind{in_.streams};
  if (behind.add_cover_of(o)) wait_for(lock, behind.all().front());
  poll(lock);
}

bool fence_calls::wait_for_all(arena_lock& lock) {
  if (in_.streams.captures() > 0) return false;
  {
    held_fences held{in_.streams};
    {
      const stream_order::later unlocked{in_.streams};
      for (owner_id o = 1; o < in_.streams.end(); ++o) {
        if (in_.streams.serves_others(o) && !in_.blocks.owns_nothing(o)) held.add_cover_of(o);
      }
      in_.uses.hold_fences(&held);
    }
    record(lock);
    in_.calls.records.wait_for_none(lock);  // other threads'
    if (held.all().empty()) return false;
    for (const fence_index f : held.all()) wait_for(lock, f);
  }
  poll(lock);
  return true;
}

}  // namespace gpumem
