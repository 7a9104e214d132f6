#include "pager.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "bits.hpp"
#include "log.hpp"

namespace gpumem {
namespace {

/// Bounds how often a request is planned again because the device or the limit gave less than expected.
constexpr unsigned most_rounds = 12;

/// After a refusal, runs are so much shorter: from 1 GiB to a page in three rounds.
constexpr std::uint64_t shorter_runs = 16;

}  // namespace

// Reserves another address range, as large as the policy wants, or smaller down to the policy's minimum or the
// request's need. False if the driver has none; if it was to be the first range, the pool may use segments from then
// on.
bool pager::add_range(arena_lock& lock, pending_request& request) {
  const std::uint64_t page = state_.pages.page_bytes();
  const std::optional<std::uint64_t> least =
      checked_round_up(request.bytes + (request.alignment - block_granularity), page);
  if (!least) return false;
  const heap_totals& held = state_.blocks.totals();
  const bool or_segments = state_.rules.least_range_bytes != 0 && held.segment_bytes + held.unbacked_bytes == 0;
  const std::uint64_t shortest =
      or_segments ? std::max(round_up(state_.rules.least_range_bytes, page), *least) : *least;
  std::uint64_t bytes = std::max(round_up(state_.rules.range_bytes, page), shortest);
  for (;;) {
    const result<address> range = state_.with_room_for_segment(lock, [&] { return state_.own_device.reserve(bytes); });
    if (range.ok()) {
      state_.blocks.add_segment(*range, bytes, request.segment_class, false);
      ++state_.counts.grown_segments;
      return true;
    }
    const bool refused = range.code() == errc::out_of_memory;
    if (!refused || bytes == shortest) {
      if (or_segments && range.code() != errc::host_failure) {  // not paged from now on
        state_.set_rules({});
        log_if_possible([&] {
          return fmt::format("pool {} ({}): takes segments, no region of addresses could be reserved: {}",
                             state_.config.name, state_.config.policy_name, range.why().message());
        });
      } else if (refused && request.segment_class != 0 && request.apart) {
        state_.rules.streams_apart = false;  // all streams share the first range; another thread may have found it, too
        request.segment_class = 0;
        return true;
      } else if (refused) {
        request.device_refused = true;
      } else {
        request.driver_error = range.why();
      }
      return false;
    }
    bytes = std::max(round_down(bytes / 2, page), shortest);
  }
}

// `may` has the options that are still allowed, and the limits from earlier refusals.
page_manager::verdict pager::plan(const pending_request& request, const page_place& place,
                                  page_manager::paging_limits may, remap_batch* step) const {
  may.policy = state_.pool_policy.page_in(state_.view(), request.bytes, place.missing_bytes);
  may.room_bytes = std::min(may.room_bytes, state_.pool_budget.left());
  may.unmap = may.unmap && state_.streams.captures().local() == 0;
  step->may_unmap = may.unmap;
  const stream_slot& slot = state_.streams[request.owner];
  if (!may.poll && slot.serves_others() && !slot.dirty && !slot.fences.empty()) {
    const tracked_fence& latest = state_.streams.fences()[slot.fences.back().fence];
    if (!latest.record_failed && latest.status != tracked_fence::state::failed) {  // it covers all that is free there
      step->owner = request.owner;
      step->epoch = slot.epoch - 1;
    }
  }
  may.poll = may.poll && may.unmap && (state_.blocks.totals().cached_bytes != 0 || !state_.uses.waiting().empty());
  return state_.pages.plan(place, request.bytes, may, step);
}

// Makes the step's driver calls without the lock. Requires the ticket, and the step's new bytes reserved. Takes all
// host memory that the step needs first, so a lack of it leaves nothing half done.
status pager::execute(arena_lock& lock, remap_batch& step, reservation* reserved) {
  state_.pages.begin(step);
  status done = state_.calls.give_backs.run_unlocked(
      lock, [&] { return gpumem::execute(state_.own_device, step, &state_.observers); });
  stream_slot& slot = state_.streams[step.owner];
  const page_manager::finished made = state_.pages.finish(step, slot.epoch);
  if (made.freed_runs != 0) {
    slot.references += made.vacating_runs;
    slot.dirty = true;
    slot.unfenced.frees += made.freed_runs;
    slot.unfenced.bytes += made.freed_bytes;
  }
  if (made.gone_bytes != 0) state_.pool_budget.give_back(made.gone_bytes);
  state_.counts.mapped_pages += made.mapped_pages;
  state_.counts.remapped_pages += made.remapped_pages;
  reserved->keep(made.new_bytes);
  state_.count_taken(made.new_bytes);
  if (made.remapped_pages != 0) {
    state_.note(slow_event::pages_moved, made.remapped_pages * state_.pages.page_bytes());
  }
  if (made.new_bytes != 0) state_.note(slow_event::pages_taken, made.new_bytes);
  if (made.new_bytes != 0) state_.pool_policy.grew(state_.view(), made.new_bytes);
  return done;
}

// Whether a place in the other range, if there is one, comes before new pages.
bool pager::prefers_other_range(const pending_request& request, const page_place& place, bool may_unmap) const {
  if (!state_.rules.streams_apart) return false;
  const bool moves = may_unmap && state_.streams.captures().local() == 0;
  return !moves || state_.pool_policy.page_in(state_.view(), request.bytes, place.missing_bytes).other_range_first;
}

// Permits context events: a capture that they would invalidate does not survive moved pages either. Memory that is idle
// by then may serve where it is.
step_result pager::fence_before_moves(arena_lock& lock, const pending_request& request) {
  const context_events permit{state_.streams.captures()};
  const bool same = state_.streams[request.stream].key == request.stream_key;  // else the slot is another stream's now
  fences_.fence_everything(lock, same ? request.stream : idle_owner);
  return request.any_range ? step_result::of_search(state_.search(request)) : step_result::outcome::nothing;
}

// Notes the refusal: the limit leaves no room for pages, or the device has none.
step_result pager::note_impossible(pending_request& request, std::uint64_t missing_bytes) {
  const bool by_limit = state_.pool_budget.left() < missing_bytes;
  (by_limit ? request.limit_refused : request.device_refused) = true;
  state_.note(by_limit ? slow_event::refused_by_limit : slow_event::refused_by_device, missing_bytes);
  return step_result::outcome::nothing;
}

// Only the refusal of a single page tells how much the device still has.
void pager::note_refusal(pending_request& request, const remap_batch& step, page_manager::paging_limits* may) {
  request.device_refused = true;
  state_.note(slow_event::refused_by_device, step.refused_bytes);
  const std::uint64_t page = state_.pages.page_bytes();
  if (step.refused_bytes > page) {
    may->run_bytes = std::max(page, round_down(step.refused_bytes / shorter_runs, page));
  } else {
    may->room_bytes = step.made_bytes;
  }
}

// Idle runs may be too long for the pieces of the place `keep`; returning them makes room for other runs.
void pager::give_back(arena_lock& lock, std::uint64_t bytes, page_span keep, page_manager::paging_limits* may) {
  may->give_back = false;
  const std::uint64_t returned = return_stretches(lock, bytes, keep);
  state_.pages.count_replaced(returned);
  if (may->room_bytes != UINT64_MAX) may->room_bytes += returned;
}

step_result pager::page_in(arena_lock& lock, pending_request& request) {
  page_manager::paging_limits may;
  may.unmap = state_.may_give_back(lock);
  for (unsigned round = 0; round < most_rounds; ++round) {
    if (may.unmap) unmap_vacated(lock);
    if (!undo_stranded(lock, may.unmap)) {
      request.device_refused = true;
      return step_result::outcome::nothing;
    }
    const std::optional<page_place> place = cheapest_place(state_.blocks, request.segment_class, request.owner,
                                                           request.bytes, request.alignment, state_.pages.page_bytes());
    if (!place) {
      if (!add_range(lock, request)) return step_result::outcome::nothing;
      continue;
    }
    if (place->missing_bytes == 0) {
      return step_result::of_search(state_.blocks.carve_at(place->first, place->begin, request.bytes, request.owner));
    }
    if (!request.any_range && prefers_other_range(request, *place, may.unmap)) {
      request.any_range = true;
      if (const block_index i = state_.search(request); i != no_block) return step_result::of_search(i);
      continue;  // the search may have merged blocks of the place
    }
    remap_batch step;
    using verdict = page_manager::verdict;
    switch (plan(request, *place, may, &step)) {
      case verdict::poll_first:
        may.poll = false;
        if (const step_result placed = fence_before_moves(lock, request); placed.found()) return placed;
        continue;
      case verdict::give_back_first:
        give_back(lock, step.new_bytes, pages_of(place->begin, request.bytes, state_.pages.page_bytes()), &may);
        continue;
      case verdict::impossible:
        return note_impossible(request, place->missing_bytes);
      case verdict::ready:
        break;
    }
    if (!state_.pool_budget.reserve(step.new_bytes)) continue;  // the limit was lowered in between
    reservation reserved{state_.pool_budget, step.new_bytes};
    const status done = execute(lock, step, &reserved);
    may.poll = may.poll || step.owner != idle_owner;  // these pages are free since now: a new fence covers them
    if (done.ok()) {
      // The new memory may have completed a gap that fits better than the place.
      block_index placed = state_.search(request);
      if (placed == no_block) {
        placed = state_.pages.carve(*place, request.bytes, request.owner, step.pieces.front().begin);
      }
      if (placed != no_block) return step_result::of_search(placed);
      continue;  // another thread took part of the place
    }
    if (done.code() != errc::out_of_memory) {
      request.driver_error = done;
      return step_result::outcome::nothing;
    }
    note_refusal(request, step, &may);
  }
  return step_result::outcome::nothing;
}

// Unmaps the runs that a failed step left mapped during a capture. Requires the ticket. False while a capture still
// forbids it: the addresses stay in use until then.
bool pager::undo_stranded(arena_lock& lock, bool may_unmap) {
  while (!state_.pages.stranded().empty()) {
    if (!may_unmap || state_.streams.captures().local() != 0) return false;
    const mapped_run run = state_.pages.stranded().back();
    const returned_runs done = state_.calls.give_backs.run_unlocked(lock, [&] {
      return return_runs(state_.own_device, {&run, 1});
    });
    state_.pages.finish_stranded(done);
    state_.pool_budget.give_back(done.destroyed);
  }
  return true;
}

// Unmaps the addresses that runs left while work was pending there, where that is done by now. Requires the ticket, so
// no other thread changes the list.
void pager::unmap_vacated(arena_lock& lock) {
  const auto& vacating = state_.pages.vacating();
  for (std::size_t k = 0; k < vacating.size();) {
    if (state_.streams.captures().local() != 0) return;
    const address begin = vacating[k].run.begin;
    address end = begin;
    std::size_t last = k;
    for (; last < vacating.size() && vacating[last].run.begin == end && vacating[last].segment == vacating[k].segment &&
           state_.streams[vacating[last].owner].done >= vacating[last].epoch;
         ++last) {
      end += vacating[last].run.bytes;
    }
    if (last == k) {
      ++k;
      continue;
    }
    const status unmapped = state_.calls.give_backs.run_unlocked(
        lock, [&] { return unmap_observed(state_.own_device, begin, end - begin, &state_.observers); });
    if (!unmapped) {  // tried again at the next step
      k = last;
      continue;
    }
    for (std::size_t each = k; each < last; ++each) --state_.streams[vacating[each].owner].references;
    state_.pages.finish_vacating(k, last - k);
  }
}

// Requires the ticket.
std::uint64_t pager::return_stretches(arena_lock& lock, std::uint64_t bytes, page_span keep) {
  std::uint64_t returned = 0;
  while (returned < bytes && state_.may_give_back(lock)) {
    const std::vector<mapped_run> going = state_.pages.take_longest_idle(bytes - returned, keep);
    if (going.empty()) break;
    const std::uint64_t size = going.back().begin + going.back().bytes - going.front().begin;
    const returned_runs done = state_.calls.give_backs.run_unlocked(
        lock, [&] { return return_runs(state_.own_device, going, &state_.observers); });
    if (!done.why) {
      log_if_possible([&] {
        return fmt::format("pool {}: {} of {} that were to go are {}, the driver did not take them back: {}",
                           state_.config.name, format_bytes(size - done.destroyed), format_bytes(size),
                           done.unmapped ? "leaked" : "kept", done.why.message());
      });
    }
    state_.pages.finish(going, done);
    state_.pool_budget.give_back(done.destroyed);
    returned += done.destroyed;
    state_.counts.returned_pages += done.destroyed / state_.pages.page_bytes();
    if (done.destroyed != 0) state_.note(slow_event::pages_returned, done.destroyed);
    if (!done.why) break;
  }
  return returned;
}

std::uint64_t pager::return_pages(arena_lock& lock, std::uint64_t bytes, const wait_deadline& deadline) {
  if (state_.gate.taken() && !state_.gate.wait(lock, deadline.end())) return 0;
  const growth_ticket ticket{state_.gate};
  const bool may_unmap = state_.may_give_back(lock);
  undo_stranded(lock, may_unmap);
  if (may_unmap) unmap_vacated(lock);
  return return_stretches(lock, bytes, {});
}

}  // namespace gpumem
