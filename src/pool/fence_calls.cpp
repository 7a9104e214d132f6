#include "fence_calls.hpp"

#include <algorithm>
#include <unordered_map>
#include <vector>

namespace gpumem {

bool fence_calls::poll(arena_lock& lock, std::size_t most_pending) {
  const heap_totals& totals = state_.blocks.totals();
  const std::uint64_t idle_bytes = totals.idle_bytes;
  const std::uint64_t fenced_bytes = totals.fenced_bytes;
  {
    const device::calls_together row{state_.own_device};
    state_.streams.poll();  // first: a fenced block whose owner's work is done then becomes idle at once
    state_.uses.poll(most_pending);
  }
  const bool freed = totals.idle_bytes != idle_bytes || totals.fenced_bytes != fenced_bytes;
  if (freed) state_.mutex.begin_generation();
  record(lock);
  return freed;
}

void fence_calls::fence_everything(arena_lock& lock, owner_id named) {
  state_.streams.fence_named(named, true, 1);
  for (const owner_id owner : state_.blocks.free_blocks().owners()) {
    if (state_.streams[owner].serves_others() && state_.streams[owner].dirty) state_.streams.fence_behind(owner);
  }
  for (const page_manager::vacating_run& each : state_.pages.vacating()) {
    if (state_.streams[each.owner].dirty) state_.streams.fence_behind(each.owner);
  }
  record(lock);
  held_fences held{state_.streams};
  hold_frees(&held);
  ask_until_done(held);
  poll(lock);
}

void fence_calls::record(arena_lock& lock) {
  const std::vector<unrecorded_fence> fences = state_.streams.fences().take_unrecorded();
  if (fences.empty()) return;
  const device::calls_together row{state_.own_device};
  const unsigned captures = state_.streams.captures().local();
  for (const unrecorded_fence& f : fences) {
    const bool overtaken = state_.streams.captures().local() > captures;
    std::optional<fence> recorded;
    if (!overtaken && state_.streams.begin_handle_call(f)) {
      blocking_calls& records = f.spares_captures ? state_.calls.records : state_.calls.context_records;
      const result<fence> made = records.run_unlocked(lock, [&] { return state_.streams.record_on_device(f); });
      if (made) recorded = *made;
      state_.streams.end_handle_call(f);
    }
    state_.streams.fences().recorded(f, recorded);
  }
}

void fence_calls::order(arena_lock& lock, device_waits& waits) {
  record(lock);
  const device::calls_together row{state_.own_device};
  const unsigned captures = state_.streams.captures().local();
  using state = device_waits::wait::state;
  for (device_waits::wait& w : waits.begin_round()) {
    if (w.status != state::missing) continue;
    waits.tried(w, state_.streams.captures().local() <= captures && order_one(lock, waits.waiter(), w.fence));
  }
}

// False if the fence has failed, or another thread has not recorded it yet.
bool fence_calls::order_one(arena_lock& lock, owner_id waiter, fence_index fence) {
  const tracked_fence tracked = state_.streams.fences()[fence];
  if (tracked.status != tracked_fence::state::pending) return tracked.status == tracked_fence::state::done;
  const stream_ref stream = state_.streams[waiter].stream;
  const status made = state_.calls.records.run_unlocked(
      lock, [&] { return state_.own_device.wait_stream(stream, tracked.device_fence); });
  if (made) ++state_.counts.device_waits;
  return made.ok();
}

step_result fence_calls::wait_for_any(arena_lock& lock, const held_fences& held, const wait_deadline& deadline) {
  // Wait for each stream's first fence only: its later ones complete after it. Fences without an order are all waited
  // for.
  std::vector<fence_index> first;
  std::unordered_map<owner_id, std::size_t> first_of_stream;
  for (const fence_index f : held.all()) {
    const tracked_fence& each = state_.streams.fences()[f];
    if (each.status != tracked_fence::state::pending || !state_.streams.may_wait_for(f)) continue;
    if (each.order != idle_owner && !each.foreign) {
      const auto [at, is_new] = first_of_stream.try_emplace(each.order, first.size());
      if (!is_new) {
        fence_index& earliest = first[at->second];
        if (each.number < state_.streams.fences()[earliest].number) earliest = f;
        continue;
      }
    }
    first.push_back(f);
  }
  std::vector<fence> pending;
  for (const fence_index f : first) pending.push_back(state_.streams.fences()[f].device_fence);
  const std::uint64_t left_ns = deadline.left_ns();
  if (pending.empty() || left_ns == 0) return step_result::outcome::nothing;
  const std::uint64_t generation = state_.mutex.generation();
  const std::uint64_t changes_before = lock.changes_by_others();
  const auto changed = [&] { return state_.mutex.generation() != generation; };
  const std::uint64_t began_ns = flight_time_ns();
  const result<bool> done =
      state_.calls.host_waits.run_unlocked(lock, [&] { return state_.own_device.wait_any(pending, left_ns, changed); });
  if (done.code() == errc::host_failure) return step_result::outcome::nothing;
  ++state_.counts.host_waits;
  state_.note(slow_event::host_waited, flight_time_ns() - began_ns);
  {
    const device::calls_together row{state_.own_device};
    state_.streams.begin_round();
    for (const fence_index f : first) state_.streams.ask(f);  // also detects failed fences
  }
  poll(lock);
  const bool timed_out = done && !*done && lock.changes_by_others() == changes_before;
  return timed_out ? step_result::outcome::nothing : step_result::outcome::waited;
}

bool fence_calls::wait_for_each(arena_lock& lock, const held_fences& held, const wait_deadline& deadline) {
  const auto others_record = [&]() GPUMEM_UNDER_LOCK {
    return std::ranges::any_of(held.all(), [&](fence_index fence) GPUMEM_UNDER_LOCK {
      return state_.streams.fences()[fence].status == tracked_fence::state::unrecorded;
    });
  };
  bool any = false;
  for (;; any = true) {
    if (wait_for_any(lock, held, deadline).waited()) continue;
    if (!others_record() || !lock.wait_for_generation(state_.mutex.generation(), deadline.end())) break;
  }
  return poll(lock) || any;
}

void fence_calls::wait_for_owner(arena_lock& lock, owner_id owner, const wait_deadline& deadline) {
  held_fences held{state_.streams};
  held.add_cover_of(owner);
  record(lock);
  wait_for_each(lock, held, deadline);
}

void fence_calls::hold_frees(held_fences* held) {
  for (const owner_id owner : state_.blocks.free_blocks().owners()) {
    if (state_.streams[owner].serves_others()) held->add_cover_of(owner);
  }
  owner_id last = idle_owner;
  for (const page_manager::vacating_run& each : state_.pages.vacating()) {
    if (each.owner != last) held->add_cover_of(each.owner);
    last = each.owner;
  }
}

void fence_calls::hold_all(arena_lock& lock, held_fences* held) {
  hold_frees(held);
  state_.uses.hold_fences(held);
  record(lock);
}

bool fence_calls::ask_until_done(const held_fences& held) {
  const device::calls_together row{state_.own_device};
  using state = tracked_fence::state;
  const auto is_pending = [&](fence_index fence)
                              GPUMEM_UNDER_LOCK { return state_.streams.ask(fence) == state::pending; };
  for (std::size_t round = 0; round < most_queries; ++round) {  // a round ends at the first fence that is pending
    state_.streams.begin_round();
    if (std::ranges::none_of(held.all(), is_pending)) break;
  }
  return std::ranges::all_of(held.all(), [&](fence_index fence) GPUMEM_UNDER_LOCK {
    return state_.streams.fences()[fence].status == state::done;
  });
}

bool fence_calls::finds_idle(arena_lock& lock, owner_id stream, std::uint64_t stream_key) {
  stream_order& streams = state_.streams;
  // Events on the context, and the driver's free, would invalidate a capture that is not noticed.
  if (streams.keys().captures_may_hide() || !state_.may_give_back(lock)) return false;
  held_fences held{streams};
  hold_all(lock, &held);
  if (!ask_until_done(held)) return false;  // frees have work before them: no need to ask the streams
  if (streams[stream].key != stream_key) stream = idle_owner;  // the slot is another stream's now
  for (owner_id each = 1; each < streams.slots().end(); ++each) {
    const stream_slot& slot = streams[each];
    if (!slot.in_use || slot.ended || slot.is_graph()) continue;
    if (!held.add_new(each, each == stream)) {
      record(lock);  // those that are reserved already
      return false;
    }
  }
  record(lock);
  const bool idle = ask_until_done(held);
  poll(lock);
  return idle;
}

bool fence_calls::wait_for_all(arena_lock& lock, const wait_deadline& deadline) {
  if (state_.streams.captures().pause_fences()) return false;
  held_fences held{state_.streams};
  hold_all(lock, &held);
  return !held.all().empty() && wait_for_each(lock, held, deadline);
}

}  // namespace gpumem
