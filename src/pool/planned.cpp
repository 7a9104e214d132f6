// Following a plan: a request that the plan expects gets its place in the plan's segment, any other the best fit beside
// it.
//
// The plan's segment is the only one of class 0; what departs from the plan is of class 1, so that it does not stand
// where a planned block will go. It is let into class 0 when the plan was not followed for long, or when nothing else
// is left. No thread caches: every request has to be seen in its order.
#include <fmt/format.h>

#include <utility>

#include "log.hpp"
#include "pool.hpp"

namespace gpumem {

// The block at the planned place, live, or none where the request departs from the plan or the place is not free.
block_index pool::place_planned(guard& lock, want& w, std::uint64_t stream_key) {
  if (!opened_) {
    const unsigned klass = w.klass;
    w.klass = 0;
    open_first(lock, w);
    w.klass = klass;
  }
  fence_promised(lock);
  block_index i = no_block;
  const std::optional<planned::place> place = planned_.next(heap_, w.bytes, stream_key);
  if (place && !w.capturing && place->begin % w.alignment == 0) {
    i = free_when_done(lock, w, *place);
    if (i != no_block) {
      const owner_id o = heap_.at(i).owner;
      i = heap_.carve_at(i, place->begin, w.bytes, o == idle_owner ? w.owner : o);
      planned_.placed(*place, i);
    }
  }
  ++(i != no_block ? counts_.plan_placements : counts_.plan_departures);
  if (counts_.plan_placements == 0 && counts_.plan_departures == planned::lost_after && planned_.lost()) {
    log_if_possible([&, departures = counts_.plan_departures] {
      return fmt::format(
          "pool {}: of the first {} requests the plan has none: it is of another program; growth serves "
          "instead",
          config_.name, departures);
    });
  }
  return i;
}

// What the plan gives to another stream next gets its fence at the first request behind the free, so that the work
// before it can be seen to be done when that stream asks. Under `device` the fence is recorded when it is waited for.
void pool::fence_promised(guard& lock) {
  if (!promised_ || config_.reuse == stream_reuse::device || streams_.captures() > 0) return;
  promised_ = false;
  {
    const stream_order::later unlocked{streams_};
    for (owner_id o = 1; o < streams_.end(); ++o) {
      if (!std::exchange(streams_[o].promised, false)) continue;
      if (const result<fence_index> f = streams_.cover(o); f && *f != no_fence) streams_.let_go(*f);
    }
  }
  record_fences(lock);
}

// As `free_at`, also where what other streams did there is done by now. Under `host` the first of them is waited for.
block_index pool::free_when_done(guard& lock, const want& w, const planned::place& place) {
  owner_id other = idle_owner;
  const block_index at_once = free_at(w, place, &other);
  if (at_once != no_block || (other == idle_owner && uses_.waiting().empty())) return at_once;
  poll(lock);
  const block_index i = free_at(w, place, &other);
  if (i != no_block || other == idle_owner || config_.reuse != stream_reuse::host) return i;
  held_fences behind{streams_};
  if (behind.add_cover_of(other)) wait_for(lock, behind.all().front());
  poll(lock);
  return free_at(w, place, &other);
}

// The free block that contains all of a place, after the request's stream was ordered behind those whose memory it is.
// Where an owner is in the way that may not be waited for on the device, none, and that owner.
block_index pool::free_at(const want& w, const planned::place& place, owner_id* in_the_way) {
  *in_the_way = idle_owner;
  const planned::blocks found = planned_.find(heap_, place, w.bytes, w.owner);
  const bool waits_on_device = config_.reuse == stream_reuse::device && streams_.captures() == 0;
  for (const owner_id o : found.others) {
    if (waits_on_device && (!streams_[o].is_graph || streams_[o].gone)) continue;
    *in_the_way = o;
    return no_block;
  }
  if (found.first == no_block) return no_block;
  for (const owner_id o : found.others) {
    if (!streams_.order_behind(w.owner, o)) return no_block;
  }
  if (!found.several || found.others.empty())
    return found.first;  // parts of own and idle blocks are cut out where they are
  streams_[w.owner].dirty = true;
  return heap_.unite(found.first, place.begin + w.bytes, w.owner, streams_[w.owner].epoch);
}

// As `climb`, for what the plan did not place.
block_index pool::climb_beside_plan(guard& lock, want& w) {
  const unsigned klass = w.klass;
  if (planned_.lost()) {
    w.klass = 0;
    if (const block_index i = search(w); i != no_block) return i;
    w.klass = klass;
  }
  if (const block_index i = climb(lock, w); i != no_block) return i;
  w.klass = 0;
  return climb(lock, w);
}

}  // namespace gpumem
