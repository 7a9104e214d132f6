#include "planned_requests.hpp"

#include <fmt/format.h>

#include <utility>

#include "log.hpp"

namespace gpumem {

block_index planned_requests::place(arena_lock& lock, pending_request& w) {
  if (!growth_.opened()) {
    const unsigned klass = std::exchange(w.klass, 0);
    growth_.open(lock, w);
    w.klass = klass;
  }
  fence_promised(lock);
  block_index i = no_block;
  const std::optional<planned::place> at = places_.next(in_.blocks, w.bytes, w.stream_key);
  if (at && !w.capturing && at->begin % w.alignment == 0) {
    i = free_when_done(lock, w, *at);
    if (i != no_block) {
      const owner_id o = in_.blocks.at(i).owner;
      i = in_.blocks.carve_at(i, at->begin, w.bytes, o == idle_owner ? w.owner : o);
      places_.placed(*at, i);
    }
  }
  ++(i != no_block ? in_.counts.plan_placements : in_.counts.plan_departures);
  if (in_.counts.plan_placements == 0 && in_.counts.plan_departures == planned::lost_after && places_.lost()) {
    log_if_possible([&, departures = in_.counts.plan_departures] {
      return fmt::format(
          "pool {}: of the first {} requests the plan has none: it is of another program; growth serves instead",
          in_.config.name, departures);
    });
  }
  return i;
}

// What the plan gives to another stream next gets its fence at the first request behind the free, so that the work
// before it can be seen to be done when that stream asks. Under `device` the fence is recorded when it is waited for.
void planned_requests::fence_promised(arena_lock& lock) {
  if (!promised_ || in_.config.reuse == stream_reuse::device || in_.streams.fences_paused()) return;
  promised_ = false;
  const auto fence = [&](owner_id o) {
    if (std::exchange(in_.streams[o].promised, false)) in_.streams.fence_behind(o);
  };
  for (const owner_id o : in_.blocks.owners_of_free_blocks()) fence(o);
  for (const block_index i : in_.uses.waiting()) fence(in_.blocks.at(i).owner);
  fences_.record(lock);
}

// As `free_at`, also where what other streams did there is done by now. Under `host` the first of them is waited for.
block_index planned_requests::free_when_done(arena_lock& lock, pending_request& w, const planned::place& at) {
  owner_id other = idle_owner;
  const block_index at_once = free_at(lock, w, at, &other);
  if (at_once != no_block || (other == idle_owner && in_.uses.waiting().empty())) return at_once;
  fences_.poll(lock);
  const block_index i = free_at(lock, w, at, &other);
  if (i != no_block || other == idle_owner || in_.config.reuse != stream_reuse::host) return i;
  fences_.wait_for_owner(lock, other, in_.deadline_of(w));
  return free_at(lock, w, at, &other);
}

// The free block that contains all of a place, after the request's stream was ordered behind those whose memory it is.
// Where an owner is in the way that may not be waited for on the device, none, and that owner.
block_index planned_requests::free_at(arena_lock& lock, const pending_request& w, const planned::place& at,
                                      owner_id* in_the_way) {
  return fences_.take_ordered(lock, w.owner, [&](device_waits& waits) GPUMEM_UNDER_LOCK -> block_index {
    *in_the_way = idle_owner;
    const planned::blocks found = places_.find(in_.blocks, at, w.bytes, w.owner);
    const bool waits_on_device = in_.config.reuse == stream_reuse::device && !in_.streams.fences_paused();
    for (const auto [o, epoch] : found.others) {
      if (waits_on_device && in_.streams.serves_others(o)) continue;
      *in_the_way = o;
      return no_block;
    }
    if (found.first == no_block) return no_block;
    bool ordered = true;
    for (const auto [o, epoch] : found.others) ordered = waits.behind(o, epoch) && ordered;
    if (!ordered) return no_block;
    if (!found.several || found.others.empty()) return found.first;  // own and idle blocks are cut where they are
    in_.streams[w.owner].dirty = true;
    return in_.blocks.unite(found.first, at.begin + w.bytes, w.owner, in_.streams[w.owner].epoch);
  });
}

block_index planned_requests::climb(arena_lock& lock, pending_request& w) {
  const unsigned klass = w.klass;
  if (places_.lost()) {
    w.klass = 0;
    if (const block_index i = in_.search(w); i != no_block) return i;
    w.klass = klass;
  }
  if (const block_index i = ladder_.climb(lock, w); i != no_block) return i;
  w.klass = 0;
  return ladder_.climb(lock, w);
}

}  // namespace gpumem
