#include "oom_ladder.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <exception>
#include <utility>

#include "log.hpp"
#include "text.hpp"

namespace gpumem {
namespace {

/// Bounds the retries for a callback that keeps returning true without freeing anything.
constexpr unsigned most_callback_rounds = 16;

}  // namespace

block_index oom_ladder::climb(arena_lock& lock, pending_request& request) {
  const wait_deadline& deadline = state_.deadline_of(request);
  if (!growth_.opened()) {
    growth_.open(lock, request);
    if (const block_index i = state_.search(request); i != no_block) return i;
  }
  for (unsigned callback_rounds = 0;;) {
    const std::uint64_t changes_before = lock.changes_by_others();
    bool may_yet_be_served = false;
    request.limit_refused = request.device_refused = false;
    request.driver_error = {};
    if (request.bytes <= std::max(state_.pool_budget.limit(), state_.pool_budget.reserved())) {
      step_result step = look(lock, request);
      if (!step.found()) step = last_resorts(lock, request);
      if (step.found()) return step.block();
      may_yet_be_served = may_be_served(lock, request);
      if (may_yet_be_served) {
        const bool changed = state_.caches.reclaim_all() || lock.changes_by_others() != changes_before;
        if (changed && deadline.left_ns() != 0) continue;
        if (wait(lock, request).waited()) continue;
      }
    } else {
      request.limit_refused = true;
    }
    if (callback_rounds++ < most_callback_rounds && ask_callbacks(lock, request.bytes)) continue;
    // Other threads ran during the callbacks.
    const bool changed = may_yet_be_served && lock.changes_by_others() != changes_before && deadline.left_ns() != 0;
    if (!changed) return no_block;
  }
}

step_result oom_ladder::look(arena_lock& lock, pending_request& request) {
  fences_.poll(lock);
  if (const block_index i = state_.search(request); i != no_block) return step_result::of_search(i);
  if (state_.keeps_whole(request)) {
    if (const step_result placed = grow_to_keep_whole(lock, request); placed.found()) return placed;
  }
  if (state_.caches.reclaim_all()) {
    fences_.poll(lock);  // deferred frees bring their own fences
    if (const block_index i = state_.search(request); i != no_block) {
      state_.caches.pressure();
      return step_result::of_search(i);
    }
  }
  if (state_.blocks.absorb_idle(request.owner)) {
    if (const block_index i = state_.search(request); i != no_block) return step_result::of_search(i);
  }
  if (const step_result reused = reuse_other_streams(lock, request); reused.found()) return reused;
  state_.caches.pressure();
  merger_.note_held();
  if (const step_result placed = return_before_growth(lock, request); placed.found()) return placed;
  // Growth releases the lock, so both may be another thread's doing. Only the order of searches depends on them.
  block_index other_block = no_block;
  const bool another_holds_enough = (state_.paged() || state_.caches.program_repeats()) && !request.capturing &&
                                    best_other(request, &other_block) != idle_owner;
  const std::uint64_t taken_before = state_.counts.taken_bytes;
  const step_result grown = growth_.grow(lock, request);
  if (another_holds_enough && state_.counts.taken_bytes != taken_before) state_.fits.idle_last = true;
  if (request.grows_beside_idle && request.grown_bytes != 0) merger_.grew_beside_idle(request.grown_bytes);
  return grown;
}

// For a request that free memory of its owner would serve, which should stay whole. Threads' caches and other streams
// keep their memory. If the pool cannot grow, the request divides the free memory.
step_result oom_ladder::grow_to_keep_whole(arena_lock& lock, pending_request& request) {
  merger_.note_held();
  const step_result grown = growth_.grow(lock, request);
  if (grown.found()) return grown;
  if (request.limit_refused || request.device_refused) state_.pool_budget.note_full();
  request.may_divide = true;
  return step_result::of_search(state_.search(request));
}

// Gives back idle segments if the policy says so. The driver's free waits for all work of the device, so this happens
// only if there is none. The request is searched again, because the lock is released. A request tries this once,
// because two requests that give back the memory that the other one needs would otherwise never end.
step_result oom_ladder::return_before_growth(arena_lock& lock, pending_request& request) {
  if (state_.paged() || request.capturing || state_.gate.taken()) return step_result::outcome::nothing;
  // A step that repeats would take the segments again in each repetition.
  if (state_.caches.program_repeats()) return step_result::outcome::nothing;
  if (request.asked_whether_idle) return step_result::outcome::nothing;
  // Only a policy that may give something back is asked how it would grow.
  if (!trimmer_.would_return(UINT64_MAX)) return step_result::outcome::nothing;
  const std::uint64_t grow_bytes = state_.pool_policy.grow(state_.view(), request.segment_bytes()).bytes;
  if (!trimmer_.would_return(grow_bytes)) return step_result::outcome::nothing;
  request.asked_whether_idle = true;
  const bool is_idle = fences_.finds_idle(lock, request.stream, request.stream_key);
  state_.blocks.absorb_idle(request.owner);
  if (const block_index i = state_.search(request); i != no_block) return step_result::of_search(i);
  if (!is_idle) {
    request.grows_beside_idle = true;
    return step_result::outcome::nothing;
  }
  trimmer_.return_before_growth(lock, grow_bytes);
  state_.blocks.absorb_idle(request.owner);
  return step_result::of_search(state_.search(request));
}

step_result oom_ladder::last_resorts(arena_lock& lock, pending_request& request) {
  request.any_range = state_.rules.streams_apart;
  if (!std::exchange(request.may_divide, true)) {
    if (const block_index i = state_.search(request); i != no_block) return step_result::of_search(i);
  }
  const context_events permit{state_.streams.captures()};
  if (state_.streams.keys().captures_may_hide()) {
    const std::uint64_t idle_bytes = state_.blocks.totals().idle_bytes;
    if (const step_result reused = reuse_other_streams(lock, request); reused.found()) return reused;
    if (state_.paged() && state_.blocks.totals().idle_bytes > idle_bytes) {  // pages that became idle may move
      if (const step_result moved = growth_.grow(lock, request); moved.found()) return moved;
    }
  }
  if (const step_result joined = join_all(lock, request); joined.found()) return joined;
  return return_and_grow(lock, request);
}

// False if only a free by the program can help: live and requested bytes exceed the limit, or exceed the pool's bytes
// plus the device's free memory.
bool oom_ladder::may_be_served(arena_lock& lock, const pending_request& request) {
  std::uint64_t most = std::max(state_.pool_budget.limit(), state_.pool_budget.reserved());
  if (request.device_refused) {
    const result<memory_info> memory = [&]() GPUMEM_UNDER_LOCK {
      const unlocked_section unlocked{lock};
      return state_.own_device.memory();
    }();
    if (memory) most = std::min(most, state_.pool_budget.reserved() + memory->free_bytes);
  }
  return request.bytes <= most && state_.caches.live_bytes() <= most - request.bytes;
}

// Waits once. Returns `waited` when a fence is done or another thread changes anything.
step_result oom_ladder::wait(arena_lock& lock, pending_request& request) {
  const wait_deadline& deadline = state_.deadline_of(request);
  if (deadline.left_ns() == 0) return step_result::outcome::nothing;
  if (!state_.streams.captures().pause_fences() &&
      (state_.paged() || others_hold(request) || state_.pool_policy.gives_back(give_back::pressure, state_.view()))) {
    const context_events permit{state_.streams.captures()};
    const std::uint64_t changes_before = lock.changes_by_others();
    held_fences held{state_.streams};
    fences_.hold_all(lock, &held);
    // Work that completed since the last poll is also a reason to retry.
    if (fences_.poll(lock) || lock.changes_by_others() != changes_before) return step_result::outcome::waited;
    if (fences_.wait_for_any(lock, held, deadline).waited()) {
      state_.blocks.absorb_idle(request.owner);
      return step_result::outcome::waited;
    }
  }
  if (!state_.in_flight()) return step_result::outcome::nothing;
  const std::uint64_t began_ns = flight_time_ns();
  const bool changed = lock.wait_for_generation(state_.mutex.generation(), deadline.end());
  state_.note(slow_event::thread_waited, flight_time_ns() - began_ns);
  return changed ? step_result::outcome::waited : step_result::outcome::in_flight;
}

// Finds the other owner whose free block fits best. Skips graphs that may run again.
owner_id oom_ladder::best_other(const pending_request& request, block_index* found) const {
  owner_id best_owner = idle_owner;
  *found = no_block;
  const auto look_in = [&](unsigned segment_class) GPUMEM_UNDER_LOCK {
    for (const owner_id owner : state_.blocks.free_blocks().owners()) {
      if (owner == request.owner || !state_.streams[owner].serves_others()) continue;
      const block_index i =
          state_.blocks.free_blocks().best_fit(segment_class, owner, false, request.bytes, request.alignment);
      if (i == no_block) continue;
      const std::uint64_t bytes = state_.blocks.at(i).bytes;
      const std::uint64_t least = *found != no_block ? state_.blocks.at(*found).bytes : UINT64_MAX;
      if (bytes > least || (bytes == least && owner > best_owner)) continue;
      *found = i;
      best_owner = owner;
    }
  };
  look_in(request.segment_class);
  if (*found == no_block && request.any_range) look_in(1 - request.segment_class);
  return best_owner;
}

bool oom_ladder::others_hold(const pending_request& request) const {
  if (!state_.uses.waiting().empty()) return true;
  return std::ranges::any_of(state_.blocks.free_blocks().owners(),
                             [&](owner_id owner) { return owner != request.owner; });
}

step_result oom_ladder::reuse_other_streams(arena_lock& lock, pending_request& request) {
  if (request.capturing || state_.streams.captures().pause_fences()) return step_result::outcome::nothing;
  switch (state_.config.reuse) {
    case stream_reuse::device:
      return step_result::of_search(fences_.take_ordered(
          lock, request.owner, [&](device_waits& waits) GPUMEM_UNDER_LOCK { return take_ordered(request, waits); }));
    case stream_reuse::poll:
      return reuse_what_is_done(lock, request);
    case stream_reuse::host:
      return reuse_after_wait(lock, request);
  }
  return step_result::outcome::nothing;
}

// The stream waits on the device. Takes the smaller of a free block of another owner and a fenced block, which is
// usable once the stream is ordered behind its uses.
block_index oom_ladder::take_ordered(const pending_request& request, device_waits& waits) {
  block_index smallest = no_block;
  const owner_id best_owner = best_other(request, &smallest);
  const block_index other_block = smallest;
  block_index best = no_block;
  for (const block_index i : state_.uses.waiting()) {
    const block& b = state_.blocks.at(i);
    const bool fits =
        request.may_be_in(b.segment_class) && b.bytes >= request.bytes + (request.alignment - block_granularity);
    if (fits && (smallest == no_block || b.bytes < state_.blocks.at(smallest).bytes)) smallest = best = i;
  }
  if (best != no_block) {
    if (state_.uses.take_over(waits, best)) return state_.search(request);
    if (waits.missing()) return no_block;
  }
  if (best_owner != idle_owner) {
    if (waits.behind(best_owner, state_.blocks.at(other_block).in_index.epoch))
      return state_.blocks.carve(other_block, request.bytes, request.alignment);
    if (waits.missing()) return no_block;
  }
  // No single block is large enough. The stream's own blocks that others used have fences already; taking them back may
  // merge neighbours into a block that is.
  state_.uses.take_over_all(waits, request.owner);
  return waits.missing() ? no_block : state_.search(request);
}

// Waits for nothing. Records missing fences first, because a poll sees only recorded ones; it then finds work that is
// already done.
step_result oom_ladder::reuse_what_is_done(arena_lock& lock, pending_request& request) {
  std::size_t events = 0;
  for (const owner_id owner : state_.blocks.free_blocks().owners()) {
    const bool is_other = owner != request.owner && state_.streams[owner].serves_others();
    if (is_other && state_.streams[owner].dirty) events += std::size_t{state_.streams.fence_behind(owner)};
  }
  for (const block_index i : state_.uses.waiting()) {
    events += std::size_t{state_.streams.fence_behind(state_.blocks.at(i).owner)};
  }
  if (events == 0) return step_result::outcome::nothing;
  fences_.record(lock);
  // A poll queries each stream at most once, and the blocks that wait for uses.
  const std::size_t queries_each = events + state_.streams.slots().streams();
  for (std::size_t queries = 0; queries < fence_calls::most_queries; queries += queries_each) {
    fences_.poll(lock);
    state_.blocks.absorb_idle(request.owner);
    if (const block_index i = state_.search(request); i != no_block) return step_result::of_search(i);
  }
  return step_result::outcome::nothing;
}

// Waits on the host until the owner of the best fitting free block has finished its work. Without such a block, waits
// for all fences if a fenced block is large enough. Only GPUMEM_STREAM_REUSE=host does this before the pool grows.
step_result oom_ladder::reuse_after_wait(arena_lock& lock, pending_request& request) {
  const wait_deadline& deadline = state_.deadline_of(request);
  if (deadline.left_ns() == 0) return step_result::outcome::nothing;
  block_index other_block = no_block;
  if (const owner_id owner = best_other(request, &other_block); owner != idle_owner) {
    fences_.wait_for_owner(lock, owner, deadline);
    return step_result::of_search(state_.search(request));
  }
  const bool any_fenced_fits = std::ranges::any_of(state_.uses.waiting(), [&](block_index index) GPUMEM_UNDER_LOCK {
    return request.may_be_in(state_.blocks.at(index).segment_class) && state_.blocks.at(index).bytes >= request.bytes;
  });
  if (!any_fenced_fits || !fences_.wait_for_all(lock, deadline)) return step_result::outcome::nothing;
  return step_result::of_search(state_.search(request));
}

// Orders the stream behind all others and takes over everything they freed. Comes last before memory is given back,
// because the stream then waits for work unrelated to its block.
step_result oom_ladder::join_all(arena_lock& lock, pending_request& request) {
  if (state_.config.reuse != stream_reuse::device || request.capturing || state_.streams.captures().pause_fences()) {
    return step_result::outcome::nothing;
  }
  if (!others_hold(request)) return step_result::outcome::nothing;
  fences_.take_ordered(lock, request.owner, [&](device_waits& waits) GPUMEM_UNDER_LOCK {
    take_over_from_others(request, waits);
    state_.uses.take_over_all(waits, idle_owner);
    return no_block;
  });
  state_.blocks.absorb_idle(request.owner);
  return step_result::of_search(state_.search(request));
}

// Takes over every free block of other owners up to the epoch that the request's stream is ordered behind, and merges
// it with idle neighbours. Notes the missing waits in `waits`; `take_ordered` makes them and calls again.
void oom_ladder::take_over_from_others(const pending_request& request, device_waits& waits) {
  stream_order& streams = state_.streams;
  // From the end: an owner without free blocks is removed by moving the list's last entry into its place.
  const std::vector<owner_id>& owners = state_.blocks.free_blocks().owners();
  for (std::size_t k = owners.size(); k-- != 0;) {
    const owner_id owner = owners[k];
    if (owner == request.owner || !streams[owner].serves_others()) continue;
    static_cast<void>(waits.behind(owner));
    stream_slot& mine = streams[request.owner];
    if (state_.blocks.hand_over(owner, waits.waited(owner), request.owner, mine.epoch, true)) mine.dirty = true;
  }
}

// Returns all idle memory, not only the missing bytes. The rest would have the sizes of earlier requests, and smaller
// requests would cut it up and keep it from going back later (churn-few-live needs 1.05 times its peak this way, else
// 1.20).
step_result oom_ladder::return_and_grow(arena_lock& lock, pending_request& request) {
  if (!state_.pool_policy.gives_back(give_back::pressure, state_.view())) return step_result::outcome::nothing;
  if (trimmer_.return_idle(lock, UINT64_MAX, state_.deadline_of(request)) == 0) return step_result::outcome::nothing;
  request.limit_refused = request.device_refused = false;
  return growth_.grow(lock, request);
}

bool oom_ladder::ask_callbacks(arena_lock& lock, std::uint64_t bytes) {
  if (state_.callbacks.empty()) return false;
  const std::vector<oom_callback> callbacks = state_.callbacks;
  state_.note(slow_event::callbacks_asked, bytes);
  const unlocked_section waits{lock};
  bool again = false;
  for (const oom_callback& callback : callbacks) {
    try {
      again = callback(state_.config.ordinal, bytes) || again;
    } catch (const std::exception& e) {  // a callback that throws has freed nothing
      log_if_possible([&] {
        return fmt::format("pool {}: an out-of-memory callback threw: {}", state_.config.name, printable(e.what()));
      });
    } catch (...) {
      log_if_possible([&] {
        return fmt::format("pool {}: an out-of-memory callback threw no std::exception", state_.config.name);
      });
    }
  }
  return again;
}

}  // namespace gpumem
