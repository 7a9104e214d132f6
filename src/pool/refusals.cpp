// Refused requests and frees, each with its reason.
#include <fmt/format.h>

#include "arena.hpp"
#include "oom_diagnosis.hpp"
#include "trace_row.hpp"

namespace gpumem {

status arena::refuse(arena_lock& lock, const request& request, const pending_request& pending, oom_slot* refusal) {
  ++state.counts.out_of_memory;
  try {
    oom_report report;
    report.requested_bytes = request.bytes;
    report.pool = state.config.name;
    report.policy = state.config.policy_name;
    explain(state, pending, &report);
    {
      const auto stopped = state.caches.stop();
      report.pool_statistics = figures();
    }
    ask_device(state, lock, &report);
    const std::uint64_t now_ns = flight_time_ns();
    for (const flight_event& each : state.flight.latest(oom_report::most_events)) {
      report.recent_events.push_back(to_string(each, now_ns));
    }
    state.note(slow_event::request_refused, pending.bytes);
    state.caches.note(event_kind::refused, reachable_bytes(report), std::min(request.bytes, most_recorded_bytes),
                      request.stream);
    status failed{errc::out_of_memory, report.headline()};
    if (refusal != nullptr) *refusal = std::make_unique<oom_report>(std::move(report));
    return failed;
  } catch (const std::bad_alloc&) {
    return no_report_;
  }
}

status arena::freed_twice(address pointer) const {
  return {errc::double_free,
          fmt::format("{:#x} in pool {} is free already: a second free?", pointer, state.config.name)};
}

status arena::not_in_live_block(address pointer) const {
  return {errc::unknown_pointer, fmt::format("{:#x} is not in a live block of pool {}", pointer, state.config.name)};
}

status arena::refuse_free(address pointer, const pointer_map::lookup& seen) {
  const bool cached = seen.word().held_by() == holder::cache;
  const block_index index = cached ? state.caches.pointers().block_of(seen.index) : state.blocks.containing(pointer);
  if (index == no_block) {
    return {errc::unknown_pointer, fmt::format("{:#x} is not a block of pool {}", pointer, state.config.name)};
  }
  const block& b = state.blocks.at(index);
  if (b.state != block_state::live || held_as(index).held_by() == holder::cache) {
    ++state.counts.misuses;
    return freed_twice(pointer);
  }
  return {errc::unknown_pointer, fmt::format("{:#x} lies inside a block of pool {}, which begins at {:#x}", pointer,
                                             state.config.name, b.begin)};
}

}  // namespace gpumem
