#include "oom_ladder.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <exception>

#include "log.hpp"
#include "text.hpp"

namespace gpumem {
namespace {

/// Neither a callback that keeps saying yes without freeing anything nor other threads that are always faster may hold
/// a request for ever.
constexpr unsigned most_rounds = 16;

}  // namespace

block_index oom_ladder::climb(arena_lock& lock, pending_request& w) {
  if (!growth_.opened()) {
    growth_.open(lock, w);
    if (const block_index i = in_.search(w); i != no_block) return i;
  }
  for (unsigned lost_races = 0, callback_rounds = 0;;) {
    w.limit_refused = w.device_refused = false;
    if (w.bytes <= std::max(in_.cap.limit(), in_.cap.reserved())) {
      fences_.poll(lock);
      if (const block_index i = in_.search(w); i != no_block) return i;
      if (in_.caches.reclaim_all()) {
        if (const block_index i = in_.search(w); i != no_block) {
          in_.caches.pressure();
          return i;
        }
      }
      if (in_.blocks.absorb_idle(w.owner)) {
        if (const block_index i = in_.search(w); i != no_block) return i;
      }
      if (const block_index i = reuse_other_streams(lock, w); i != no_block) return i;
      in_.caches.pressure();
      const grown done = growth_.grow(lock, w);
      if (w.placed != no_block) return w.placed;
      if (const block_index i = in_.search(w); i != no_block) return i;
      if (done == grown::waited) continue;
      if (const block_index i = join_all(lock, w); i != no_block) return i;
      if (const block_index i = return_and_grow(lock, w); i != no_block) return i;
      const bool worth_waiting = others_hold(w) || in_.decides.gives_back(give_back::pressure, in_.view());
      const bool waited = worth_waiting && fences_.wait_for_all(lock);
      if (waited) {
        in_.blocks.absorb_idle(w.owner);
        if (const block_index i = in_.search(w); i != no_block) return i;
        if (const block_index i = return_and_grow(lock, w); i != no_block) return i;
      }
      // Others may have taken what was waited for, and have freed as much since, if only to their caches.
      const bool freed = in_.caches.reclaim_all() || (waited && cause_of(w) == oom_cause::pending_work);
      if (freed && lost_races++ < most_rounds) continue;
    } else {
      w.limit_refused = true;
    }
    if (callback_rounds++ >= most_rounds || !ask_callbacks(lock, w.bytes)) return no_block;
  }
}

// The other owner whose free block fits best; a graph's memory is nobody else's.
owner_id oom_ladder::best_other(const pending_request& w, block_index* found) const {
  owner_id whose = idle_owner;
  *found = no_block;
  for (owner_id o = 1; o < in_.streams.end(); ++o) {
    if (o == w.owner || !in_.streams.serves_others(o) || in_.blocks.owns_nothing(o)) continue;
    const block_index i = in_.blocks.best_fit(w.klass, o, false, w.bytes, w.alignment);
    if (i == no_block || (*found != no_block && in_.blocks.at(i).bytes >= in_.blocks.at(*found).bytes)) continue;
    *found = i;
    whose = o;
  }
  return whose;
}

bool oom_ladder::others_hold(const pending_request& w) const {
  if (!in_.uses.waiting().empty()) return true;
  for (owner_id o = 1; o < in_.streams.end(); ++o) {
    if (o != w.owner && in_.streams[o].in_use && !in_.blocks.owns_nothing(o)) return true;
  }
  return false;
}

block_index oom_ladder::reuse_other_streams(arena_lock& lock, const pending_request& w) {
  if (w.capturing || in_.streams.captures() > 0) return no_block;
  switch (in_.config.reuse) {
    case stream_reuse::device:
      return fences_.take_ordered(lock, w.owner,
                                  [&](device_waits& waits) GPUMEM_UNDER_LOCK { return take_ordered(w, waits); });
    case stream_reuse::poll:
      return reuse_what_is_done(lock, w);
    case stream_reuse::host:
      return reuse_after_wait(lock, w);
  }
  return no_block;
}

// The stream waits on the device. A fenced block serves as well, once the stream is ordered behind its uses; the
// smaller of the two is taken.
block_index oom_ladder::take_ordered(const pending_request& w, device_waits& waits) {
  block_index from = no_block;
  const owner_id whose = best_other(w, &from);
  const block_index other = from;
  block_index best = no_block;
  for (const block_index i : in_.uses.waiting()) {
    const block& b = in_.blocks.at(i);
    const bool fits = b.klass == w.klass && b.bytes >= w.bytes + (w.alignment - block_granularity);
    if (fits && (from == no_block || b.bytes < in_.blocks.at(from).bytes)) from = best = i;
  }
  if (best != no_block) {
    if (in_.uses.take_over(waits, best)) return in_.search(w);
    if (waits.missing()) return no_block;
  }
  if (whose != idle_owner) {
    if (waits.behind(whose, in_.blocks.at(other).in_index.epoch)) return in_.blocks.carve(other, w.bytes, w.alignment);
    if (waits.missing()) return no_block;
  }
  // None is large enough alone. The stream's own blocks that others used are free behind fences that exist already;
  // with them back, neighbours may be merged into one that is.
  in_.uses.take_over_all(waits, w.owner);
  return waits.missing() ? no_block : in_.search(w);
}

// Nobody waits, but a poll can only see fences that exist. What is done by now is seen at once.
block_index oom_ladder::reuse_what_is_done(arena_lock& lock, const pending_request& w) {
  bool any = false;
  for (owner_id o = 1; o < in_.streams.end(); ++o) {
    const bool other = o != w.owner && in_.streams.serves_others(o);
    if (other && in_.streams[o].dirty && !in_.blocks.owns_nothing(o)) any = in_.streams.fence_behind(o) || any;
  }
  for (const block_index i : in_.uses.waiting()) any = in_.streams.fence_behind(in_.blocks.at(i).owner) || any;
  if (!any) return no_block;
  fences_.record(lock);
  fences_.poll(lock);
  in_.blocks.absorb_idle(w.owner);
  return in_.search(w);
}

// The host waits for the stream whose block fits best, or for all of them.
block_index oom_ladder::reuse_after_wait(arena_lock& lock, const pending_request& w) {
  block_index from = no_block;
  if (const owner_id whose = best_other(w, &from); whose != idle_owner) {
    fences_.wait_for_owner(lock, whose);
    return in_.search(w);
  }
  const bool waits = std::ranges::any_of(in_.uses.waiting(), [&](block_index i) GPUMEM_UNDER_LOCK {
    return in_.blocks.at(i).klass == w.klass && in_.blocks.at(i).bytes >= w.bytes;
  });
  return waits && fences_.wait_for_all(lock) ? in_.search(w) : no_block;
}

// Orders the stream behind every other one and takes over all that they freed. Last before anything is given back: the
// stream then waits for work that may have nothing to do with the block it gets.
block_index oom_ladder::join_all(arena_lock& lock, const pending_request& w) {
  if (in_.config.reuse != stream_reuse::device || w.capturing || in_.streams.captures() > 0) return no_block;
  if (!others_hold(w)) return no_block;
  fences_.take_ordered(lock, w.owner, [&](device_waits& waits) GPUMEM_UNDER_LOCK {
    take_over_from_others(w, waits);
    in_.uses.take_over_all(waits, idle_owner);
    return no_block;
  });
  in_.blocks.absorb_idle(w.owner);
  return in_.search(w);
}

// What the request's stream is ordered behind becomes its own.
void oom_ladder::take_over_from_others(const pending_request& w, device_waits& waits) {
  stream_order& streams = in_.streams;
  for (owner_id o = 1; o < streams.end(); ++o) {
    if (o == w.owner || !streams.serves_others(o) || in_.blocks.owns_nothing(o)) continue;
    static_cast<void>(waits.behind(o));
    stream_slot& mine = streams[w.owner];
    if (in_.blocks.hand_over(o, waits.waited(o), w.owner, mine.epoch, true)) mine.dirty = true;
  }
}

// All that is idle goes back, not only as much as is missing: what stayed would be of sizes that were asked for before,
// and pieces of it taken by smaller requests would keep it from going back later (churn-few-live needs 1.05 times its
// peak so, 1.20 otherwise).
block_index oom_ladder::return_and_grow(arena_lock& lock, pending_request& w) {
  if (!in_.decides.gives_back(give_back::pressure, in_.view())) return no_block;
  if (trimmer_.return_idle(lock, UINT64_MAX) == 0) return no_block;
  w.limit_refused = w.device_refused = false;
  growth_.grow(lock, w);
  return w.placed != no_block ? w.placed : in_.search(w);
}

bool oom_ladder::ask_callbacks(arena_lock& lock, std::uint64_t bytes) {
  if (callbacks_.empty()) return false;
  const std::vector<oom_callback> callbacks = callbacks_;
  const unlocked_section waits{lock};
  bool again = false;
  for (const oom_callback& callback : callbacks) {
    try {
      again = callback(in_.config.ordinal, bytes) || again;
    } catch (const std::exception& e) {  // one that throws has freed nothing
      log_if_possible([&] {
        return fmt::format("pool {}: an out-of-memory callback threw: {}", in_.config.name, printable(e.what()));
      });
    } catch (...) {
      log_if_possible(
          [&] { return fmt::format("pool {}: an out-of-memory callback threw no std::exception", in_.config.name); });
    }
  }
  return again;
}

oom_cause oom_ladder::cause_of(const pending_request& w) const {
  if (!w.driver_error.ok()) return oom_cause::driver_error;
  const heap_totals& t = in_.blocks.totals();
  for (owner_id o = 1; o < in_.streams.end(); ++o) {
    if (o == w.owner || !in_.streams[o].in_use) continue;
    if (in_.blocks.best_fit(w.klass, o, false, w.bytes, w.alignment) != no_block) return oom_cause::pending_work;
  }
  for (const block_index i : in_.uses.waiting()) {
    if (in_.blocks.at(i).klass == w.klass && in_.blocks.at(i).bytes >= w.bytes) return oom_cause::pending_work;
  }
  if (t.cached_bytes + t.idle_bytes + t.fenced_bytes >= w.bytes) return oom_cause::fragmentation;
  if (w.limit_refused && !w.device_refused && in_.cap.in_group()) return oom_cause::limit;
  const bool unlimited = in_.cap.limit() >= in_.config.total_bytes;
  return w.device_refused || unlimited ? oom_cause::device_full : oom_cause::limit;
}

}  // namespace gpumem
