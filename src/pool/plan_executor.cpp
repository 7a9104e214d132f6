#include "plan_executor.hpp"

#include <fmt/format.h>

#include <utility>

#include "log.hpp"

namespace gpumem {

block_index plan_executor::place(arena_lock& lock, pending_request& request) {
  if (!growth_.opened()) {
    const unsigned segment_class = std::exchange(request.segment_class, 0);
    growth_.open(lock, request);
    request.segment_class = segment_class;
  }
  fence_needed_by_plan(lock);
  block_index i = no_block;
  const std::optional<plan_cursor::place> planned_place =
      places_.next(state_.blocks, request.bytes, request.stream_key);
  if (planned_place && !request.capturing && planned_place->begin % request.alignment == 0) {
    i = free_when_done(lock, request, *planned_place);
    if (i != no_block) {
      const owner_id owner = state_.blocks.at(i).owner;
      i = state_.blocks.carve_at(i, planned_place->begin, request.bytes, owner == idle_owner ? request.owner : owner);
      places_.placed(*planned_place, i);
    }
  }
  ++(i != no_block ? state_.counts.plan_placements : state_.counts.plan_departures);
  if (state_.counts.plan_placements == 0 && state_.counts.plan_departures == plan_cursor::lost_after &&
      places_.lost()) {
    log_if_possible([&, departures = state_.counts.plan_departures] {
      return fmt::format(
          "pool {}: of the first {} requests the plan has none: it is of another program; growth serves instead",
          state_.config.name, departures);
    });
  }
  return i;
}

// Fences memory that the plan gives to another stream next, at the first request after its free, so that the work is
// known to be done when that stream asks. Under `device` the fence is recorded when it is waited for.
void plan_executor::fence_needed_by_plan(arena_lock& lock) {
  if (!needed_by_plan_ || state_.config.reuse == stream_reuse::device || state_.streams.captures().pause_fences())
    return;
  needed_by_plan_ = false;
  const auto fence = [&](owner_id owner) {
    if (std::exchange(state_.streams[owner].needed_by_plan, false)) state_.streams.fence_behind(owner);
  };
  for (const owner_id owner : state_.blocks.free_blocks().owners()) fence(owner);
  for (const block_index i : state_.uses.waiting()) fence(state_.blocks.at(i).owner);
  fences_.record(lock);
}

// Like `free_at`, but polls and tries again. Under `host` it then waits for the first owner in the way.
block_index plan_executor::free_when_done(arena_lock& lock, pending_request& request, const plan_cursor::place& place) {
  owner_id blocker = idle_owner;
  const block_index at_once = free_at(lock, request, place, &blocker);
  if (at_once != no_block || (blocker == idle_owner && state_.uses.waiting().empty())) return at_once;
  fences_.poll(lock);
  const block_index i = free_at(lock, request, place, &blocker);
  if (i != no_block || blocker == idle_owner || state_.config.reuse != stream_reuse::host) return i;
  fences_.wait_for_owner(lock, blocker, state_.deadline_of(request));
  return free_at(lock, request, place, &blocker);
}

// Returns the free block that covers the place, after ordering the request's stream behind the owners of that memory.
// If an owner may not be waited for on the device, returns `no_block` and sets `in_the_way` to it.
block_index plan_executor::free_at(arena_lock& lock, const pending_request& request, const plan_cursor::place& place,
                                   owner_id* in_the_way) {
  return fences_.take_ordered(lock, request.owner, [&](device_waits& waits) GPUMEM_UNDER_LOCK -> block_index {
    *in_the_way = idle_owner;
    const plan_cursor::blocks found = places_.find(state_.blocks, place, request.bytes, request.owner);
    const bool waits_on_device =
        state_.config.reuse == stream_reuse::device && !state_.streams.captures().pause_fences();
    for (const auto [owner, epoch] : found.other_owners) {
      if (waits_on_device && state_.streams[owner].serves_others()) continue;
      *in_the_way = owner;
      return no_block;
    }
    if (found.first == no_block) return no_block;
    bool ordered = true;
    for (const auto [owner, epoch] : found.other_owners) ordered = waits.behind(owner, epoch) && ordered;
    if (!ordered) return no_block;
    if (!found.several || found.other_owners.empty()) return found.first;  // carve_at cuts own and idle blocks
    state_.streams[request.owner].dirty = true;
    return state_.blocks.unite(found.first, place.begin + request.bytes, request.owner,
                               state_.streams[request.owner].epoch);
  });
}

block_index plan_executor::climb(arena_lock& lock, pending_request& request) {
  const unsigned segment_class = request.segment_class;
  if (places_.lost()) {
    request.segment_class = 0;
    if (const block_index i = state_.search(request); i != no_block) return i;
    request.segment_class = segment_class;
  }
  if (const block_index i = ladder_.climb(lock, request); i != no_block) return i;
  request.segment_class = 0;
  return ladder_.climb(lock, request);
}

}  // namespace gpumem
