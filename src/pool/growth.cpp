#include "growth.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "bits.hpp"
#include "log.hpp"

namespace gpumem {

// A request waits for the ticket as for a lock, even if it may wait for no work.
bool growth::wait_for_ticket(arena_lock& lock, pending_request& request) {
  const wait_deadline& deadline = state_.deadline_of(request);
  const std::uint64_t began_ns = flight_time_ns();
  const bool free = state_.gate.wait(lock, deadline.waits() ? deadline.end() : std::nullopt);
  state_.note(slow_event::thread_waited, flight_time_ns() - began_ns);
  return free;
}

void growth::open(arena_lock& lock, pending_request& request) {
  if (state_.gate.taken()) {  // the thread with the ticket opens the pool
    if (wait_for_ticket(lock, request)) state_.gate.pass_on();
    return;
  }
  const growth_ticket ticket{state_.gate};
  const segment_request ask = state_.pool_policy.first(state_.view());
  if (ask.bytes == 0) {
    opened_ = true;
    return;
  }
  const std::uint64_t got = add_segment(lock, ask, request);
  opened_ = true;
  state_.counts.asked_at_start_bytes = ask.bytes;
  state_.counts.got_at_start_bytes = got;
  if (state_.config.verbose || got < round_down(ask.bytes, state_.own_device.info().granularity_bytes)) {
    log_if_possible([&] {
      return fmt::format("pool {} ({}): got {} of {} at first use", state_.config.name, state_.config.policy_name,
                         format_bytes(got), format_bytes(ask.bytes));
    });
  }
  if (got != 0) state_.pool_policy.grew(state_.view(), got);
}

step_result growth::grow(arena_lock& lock, pending_request& request) {
  request.grown_bytes = 0;
  if (state_.gate.taken()) {
    if (!wait_for_ticket(lock, request)) return step_result::outcome::in_flight;
    if (const block_index i = state_.search(request); i != no_block) {
      state_.gate.pass_on();
      return step_result::of_search(i);
    }
  }
  const growth_ticket ticket{state_.gate};
  if (state_.paged()) {
    const step_result paged_in = pager_.page_in(lock, request);
    if (state_.paged()) return paged_in;  // else the first range was refused, and the pool uses segments
  }
  const segment_request ask = state_.pool_policy.grow(state_.view(), request.segment_bytes());
  request.grown_bytes = add_segment(lock, ask, request);
  if (request.grown_bytes != 0) state_.pool_policy.grew(state_.view(), request.grown_bytes);
  return step_result::of_search(state_.search(request));
}

void growth::take(arena_lock& lock, std::uint64_t bytes) {
  pending_request for_nobody;
  const std::uint64_t got = add_segment(lock, {.bytes = bytes, .least_bytes = bytes}, for_nobody);
  if (got != 0) state_.pool_policy.grew(state_.view(), got);
}

// Returns the new segment's bytes, or 0 if the limit or the device refused; the request notes which. Requires the
// ticket.
std::uint64_t growth::add_segment(arena_lock& lock, const segment_request& ask, pending_request& request) {
  const std::uint64_t unit = state_.own_device.info().granularity_bytes;
  const std::optional<std::uint64_t> least = checked_round_up(std::max<std::uint64_t>(ask.least_bytes, 1), unit);
  std::uint64_t size = ask.bytes;
  for (;;) {
    const std::uint64_t left = round_down(state_.pool_budget.left(), unit);
    if (!least || *least > left) {
      request.limit_refused = true;
      state_.note(slow_event::refused_by_limit, least.value_or(UINT64_MAX));
      return 0;
    }
    size = std::clamp(round_up(std::min(size, left), unit), *least, left);
    if (!state_.pool_budget.reserve(size)) continue;  // the limit was lowered in between
    reservation reserved{state_.pool_budget, size};
    const result<address> acquired = state_.with_room_for_segment(lock, [&] {
      result<address> got = state_.own_device.alloc(size);
      if (got) state_.observers.added(*got, size, false);
      return got;
    });
    if (acquired.ok()) {
      reserved.keep(size);
      state_.blocks.add_segment(*acquired, size, request.segment_class, true, request.bytes);
      ++state_.counts.grown_segments;
      state_.count_taken(size);
      state_.note(slow_event::segment_taken, size);
      state_.mutex.begin_generation();
      return size;
    }
    if (acquired.code() != errc::out_of_memory) {
      request.driver_error = acquired.why();
      return 0;
    }
    request.device_refused = true;
    reserved.keep(0);
    state_.note(slow_event::refused_by_device, size);
    const std::uint64_t next = state_.pool_policy.smaller(size, *least);
    if (next == 0 || next >= size) return 0;
    size = std::max(round_down(next, unit), *least);
  }
}

}  // namespace gpumem
