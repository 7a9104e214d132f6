// What happens when nothing that is free fits: one step after another, each followed by a new search.
//
// 1 fences that are done by now   2 all that threads' caches hold   3 idle neighbours merged
// 4 another stream's memory, behind a fence                     5 grow, as the policy says
// 6 all other streams' memory     7 give idle segments back and grow
// 8 wait for every fence, search, and 7 again                   9 caches once more
// 10 the callbacks, and from the top                            11 fail, with a report
// Steps 4, 6 and 8 wait for nothing while a capture is under way. Runs under the pool's lock, which is given up for
// every driver call that can block; so what a step found before it gave the lock up, it searches again afterwards.
#include <fmt/format.h>

#include <algorithm>

#include "log.hpp"
#include "pool.hpp"

namespace gpumem {
namespace {

/// A callback that keeps saying yes without freeing anything must not hold a request for ever.
constexpr unsigned most_callback_rounds = 16;

}  // namespace

block_index pool::climb(guard& lock, want& w) {
  if (!opened_) {
    open_first(lock, w);
    if (const block_index i = search(w); i != no_block) return i;
  }
  for (unsigned callback_rounds = 0;;) {
    w.limit_refused = w.device_refused = false;
    if (w.bytes <= std::max(budget_.limit(), budget_.reserved())) {
      poll(lock);
      if (const block_index i = search(w); i != no_block) return i;
      if (cache_.reclaim_all()) {
        if (const block_index i = search(w); i != no_block) {
          cache_.pressure();
          return i;
        }
      }
      if (heap_.absorb_idle(w.owner)) {
        if (const block_index i = search(w); i != no_block) return i;
      }
      if (const block_index i = reuse_other_streams(lock, w); i != no_block) return i;
      cache_.pressure();
      const growth grown = grow(lock, w);
      if (w.placed != no_block) return w.placed;
      if (const block_index i = search(w); i != no_block) return i;
      if (grown == growth::waited) continue;
      if (const block_index i = join_all(w); i != no_block) return i;
      if (const block_index i = return_and_grow(lock, w); i != no_block) return i;
      const bool worth_waiting = others_hold(w) || policy_.gives_back(give_back::pressure, view());
      if (worth_waiting && wait_for_fences(lock)) {
        poll(lock);
        heap_.absorb_idle(w.owner);
        if (const block_index i = search(w); i != no_block) return i;
        if (const block_index i = return_and_grow(lock, w); i != no_block) return i;
      }
      // What other threads freed while the lock was given up may be in their caches.
      if (cache_.reclaim_all()) {
        heap_.absorb_idle(w.owner);
        if (const block_index i = search(w); i != no_block) return i;
        if (const block_index i = reuse_other_streams(lock, w); i != no_block) return i;
        if (const block_index i = join_all(w); i != no_block) return i;
        if (const block_index i = return_and_grow(lock, w); i != no_block) return i;
      }
    } else {
      w.limit_refused = true;
    }
    if (callback_rounds++ >= most_callback_rounds || !ask_callbacks(lock, w.bytes)) return no_block;
  }
}

// The other owner whose free block fits best; a graph's memory is nobody else's.
owner_id pool::best_other(const want& w, block_index* found) const {
  owner_id whose = idle_owner;
  *found = no_block;
  for (owner_id o = 1; o < streams_.end(); ++o) {
    if (o == w.owner || !streams_.serves_others(o) || heap_.owns_nothing(o)) continue;
    const block_index i = heap_.best_fit(w.klass, o, false, w.bytes, w.alignment);
    if (i == no_block || (*found != no_block && heap_.at(i).bytes >= heap_.at(*found).bytes)) continue;
    *found = i;
    whose = o;
  }
  return whose;
}

bool pool::others_hold(const want& w) const {
  if (!uses_.waiting().empty()) return true;
  for (owner_id o = 1; o < streams_.end(); ++o) {
    if (o != w.owner && streams_[o].in_use && !heap_.owns_nothing(o)) return true;
  }
  return false;
}

block_index pool::reuse_other_streams(guard& lock, want& w) {
  if (w.capturing || streams_.captures() > 0) return no_block;
  block_index from = no_block;
  const owner_id whose = best_other(w, &from);
  switch (config_.reuse) {
    case stream_reuse::device: {
      // A fenced block serves as well, once the stream is ordered behind its uses; the smaller of the two is taken.
      const auto fits_better = [&](block_index i) GPUMEM_REQUIRES(mutex_) {
        const block& b = heap_.at(i);
        return b.klass == w.klass && b.bytes >= w.bytes + (w.alignment - block_granularity) &&
               (from == no_block || b.bytes < heap_.at(from).bytes);
      };
      block_index best = no_block;
      for (const block_index i : uses_.waiting()) {
        if (fits_better(i)) from = best = i;
      }
      if (best != no_block && uses_.take_over(w.owner, best)) return search(w);
      if (whose != idle_owner && streams_.order_behind(w.owner, whose)) return search_of(w, whose);
      // None is large enough alone. The stream's own blocks that others used are free behind fences that exist
      // already; with them back, neighbours may be merged into one that is.
      return uses_.take_over_all(w.owner, w.owner) ? search(w) : no_block;
    }
    case stream_reuse::poll: {
      // Nobody waits, but a poll can only see fences that exist. What is done by now is seen at once.
      bool any = false;
      {
        const stream_order::later unlocked{streams_};
        const auto fence = [&](owner_id o) GPUMEM_REQUIRES(mutex_) {
          const result<fence_index> f = streams_.cover(o);
          if (!f || *f == no_fence) return;
          streams_.let_go(*f);
          any = true;
        };
        for (owner_id o = 1; o < streams_.end(); ++o) {
          if (o != w.owner && streams_.serves_others(o) && streams_[o].dirty && !heap_.owns_nothing(o)) fence(o);
        }
        for (const block_index i : uses_.waiting()) fence(heap_.at(i).owner);
      }
      if (!any) return no_block;
      record_fences(lock);
      poll(lock);
      heap_.absorb_idle(w.owner);
      return search(w);
    }
    case stream_reuse::host:
      if (from == no_block) {
        for (const block_index i : uses_.waiting()) {
          const block& b = heap_.at(i);
          if (b.klass != w.klass || b.bytes < w.bytes) continue;
          return wait_for_fences(lock) ? (poll(lock), search(w)) : no_block;
        }
        return no_block;
      }
      held_fences behind{streams_};
      if (behind.add_cover_of(whose)) wait_for(lock, behind.all().front());
      poll(lock);
      return search(w);
  }
  return no_block;
}

// Requires a hold on the fence. It stays pending where a capture has begun meanwhile.
void pool::wait_for(guard& lock, fence_index f) {
  if (streams_.tracked(f).seen != tracked_fence::state::pending) return;
  const fence on_device = streams_.tracked(f).device_fence;
  if (!streams_.may_wait_for(f)) return;
  status waited;
  {
    const blocking_call waits{calls_.waits, lock, mutex_};
    waited = device_.wait_host(on_device);
  }
  if (waited.code() == errc::unsupported || waited.code() == errc::host_failure) return;
  ++counts_.host_waits;
  streams_.tracked(f).seen = waited ? tracked_fence::state::done : tracked_fence::state::failed;
}

// Orders the stream behind every other one and takes over all that they freed. Last before anything is given back: the
// stream then waits for work that may have nothing to do with the block it gets.
block_index pool::join_all(const want& w) {
  if (config_.reuse != stream_reuse::device || w.capturing || streams_.captures() > 0) return no_block;
  if (!others_hold(w)) return no_block;
  for (owner_id o = 1; o < streams_.end(); ++o) {
    if (o == w.owner || !streams_.serves_others(o)) continue;
    if (heap_.owns_nothing(o) || !streams_.order_behind(w.owner, o)) continue;
    streams_[w.owner].dirty = true;
    heap_.hand_over(o, w.owner, streams_[w.owner].epoch, true);
  }
  uses_.take_over_all(w.owner, idle_owner);
  heap_.absorb_idle(w.owner);
  return search(w);
}

// All that is idle goes back, not only as much as is missing: what stayed would be of sizes that were asked for before,
// and pieces of it taken by smaller requests would keep it from going back later (churn-few-live needs 1.05 times its
// peak so, 1.20 otherwise).
block_index pool::return_and_grow(guard& lock, want& w) {
  if (!policy_.gives_back(give_back::pressure, view())) return no_block;
  if (return_idle(lock, UINT64_MAX) == 0) return no_block;
  w.limit_refused = w.device_refused = false;
  grow(lock, w);
  return w.placed != no_block ? w.placed : search(w);
}

// Waits for every fence that stands before free memory, recording those that are missing. False where there is none, or
// where a capture forbids it.
bool pool::wait_for_fences(guard& lock) {
  if (streams_.captures() > 0) return false;
  held_fences held{streams_};
  {
    const stream_order::later unlocked{streams_};
    for (owner_id o = 1; o < streams_.end(); ++o) {
      if (!streams_.serves_others(o) || heap_.owns_nothing(o)) continue;
      held.add_cover_of(o);
    }
    uses_.hold_fences(&held);
  }
  record_fences(lock);
  calls_.records.wait_for_none(lock);  // other threads'
  for (const fence_index f : held.all()) wait_for(lock, f);
  return !held.all().empty();
}

bool pool::ask_callbacks(guard& lock, std::uint64_t bytes) {
  if (callbacks_.empty()) return false;
  const std::vector<oom_callback> callbacks = callbacks_;
  const unlocked_section waits{lock, mutex_};
  bool again = false;
  for (const oom_callback& callback : callbacks) {
    try {
      again = callback(config_.ordinal, bytes) || again;
    } catch (...) {  // one that throws has freed nothing
      log_if_possible([&] {
        return fmt::format("pool {}: an out-of-memory callback threw: {}", config_.name,
                           status::of_current_exception().message());
      });
    }
  }
  return again;
}

oom_cause pool::cause_of(const want& w) const {
  if (!w.driver_error.ok()) return oom_cause::driver_error;
  const heap_totals& t = heap_.totals();
  for (owner_id o = 1; o < streams_.end(); ++o) {
    if (o == w.owner || !streams_[o].in_use) continue;
    if (heap_.best_fit(w.klass, o, false, w.bytes, w.alignment) != no_block) return oom_cause::pending_work;
  }
  for (const block_index i : uses_.waiting()) {
    if (heap_.at(i).klass == w.klass && heap_.at(i).bytes >= w.bytes) return oom_cause::pending_work;
  }
  if (t.cached_bytes + t.idle_bytes + t.fenced_bytes >= w.bytes) return oom_cause::fragmentation;
  if (w.limit_refused && !w.device_refused && budget_.in_group()) return oom_cause::limit;
  const bool unlimited = budget_.limit() >= config_.total_bytes;
  return w.device_refused || unlimited ? oom_cause::device_full : oom_cause::limit;
}

void pool::fill_report(guard& lock, const request& r, const want& w, oom_report* report) {
  report->cause = cause_of(w);
  report->pool = config_.name;
  report->policy = config_.policy_name;
  report->requested_bytes = r.bytes;
  report->rounded_bytes = w.bytes;
  {
    const auto stopped = cache_.stop();
    report->pool_statistics = stats_of_stopped();
  }
  report->driver_message = w.driver_error.message();
  const unlocked_section waits{lock, mutex_};
  if (config_.group) {
    report->group = config_.group->name();
    report->group_limit_bytes = config_.group->limit();
    report->group_held_bytes = config_.group->held();
  }
  if (const result<memory_info> m = device_.memory()) {
    report->device_total_bytes = m->total_bytes;
    report->device_free_bytes = m->free_bytes;
  } else {
    report->device_total_bytes = config_.total_bytes;
  }
}

}  // namespace gpumem
