#include "history.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "throwing/host_memory.hpp"

namespace gpumem::schedules {
namespace {

constexpr std::uint64_t granule = 2 * mib;

constexpr std::uint64_t round_to_granule(std::uint64_t bytes) noexcept {
  return (bytes + granule - 1) / granule * granule;
}

bool any_meets(const std::vector<window>& all, const window& when) {
  return std::ranges::any_of(all, [&](const window& each) { return each.meets(when); });
}

}  // namespace

history::history(const allocator_setup& setup)
    : setup_{setup},
      paged_{setup.policy == "expandable" || setup.policy == "growth:backing=mapped"},
      polls_{setup.reuse == "poll" && !(setup.notices_captures && setup.stream_ids == "query")} {
  for (std::uint32_t pool = 0; pool < setup.pools * setup.devices; ++pool)
    limits_.push_back({.pool = pool, .bytes = setup.limit_bytes, .set = 0});
}

std::size_t history::begin_request(std::uint32_t pool, std::uint64_t bytes, std::uint64_t now_ns) {
  requests_.push_back(
      {.bytes = (bytes + 511) / 512 * 512, .pool = pool, .during = {.begin = ++latest_}, .begin_ns = now_ns});
  return requests_.size() - 1;
}

void history::served(std::size_t request, address begin, std::uint64_t now_ns) {
  asked& asked_for = requests_[request];
  asked_for.during.end = ++latest_;
  asked_for.end_ns = now_ns;
  blocks_.push_back({.request = request,
                     .pool = asked_for.pool,
                     .begin = begin,
                     .bytes = asked_for.bytes,
                     .held = {.begin = asked_for.during.begin},
                     .served = latest_});
}

void history::refused(std::size_t request, std::string answer, std::uint64_t now_ns, std::uint64_t work_done_ns,
                      bool may_fail) {
  asked& asked_for = requests_[request];
  asked_for.during.end = ++latest_;
  asked_for.end_ns = now_ns;
  asked_for.work_done_ns = work_done_ns;
  asked_for.was_refused = true;
  asked_for.may_fail = may_fail;
  asked_for.answer = std::move(answer);
}

void history::freed(std::size_t request) {
  ++latest_;
  for (held_block& block : blocks_) {
    if (block.request != request) continue;
    block.held.end = latest_;
    freed_bytes_ += block.bytes;
  }
}

std::size_t history::begin_intrusion() {
  const host_memory::unwatched uncounted;
  intrusions_.push_back({.begin = ++latest_});
  return intrusions_.size() - 1;
}

void history::end_intrusion(std::size_t index) { intrusions_[index].end = ++latest_; }

std::size_t history::begin_capture() {
  captures_.push_back({.begin = ++latest_});
  return captures_.size() - 1;
}

void history::end_capture(std::size_t index) { captures_[index].end = ++latest_; }

std::size_t history::begin_limit(std::uint32_t pool, std::uint64_t bytes) {
  limits_.push_back({.pool = pool, .bytes = bytes, .in_force = {.begin = ++latest_}});
  return limits_.size() - 1;
}

// Either of two calls at the same time may be the last one, so both limits stay in force.
void history::end_limit(std::size_t index) {
  pool_limit& mine = limits_[index];
  mine.set = ++latest_;
  for (pool_limit& limit : limits_) {
    const bool is_earlier = limit.pool == mine.pool && limit.set < mine.in_force.begin;
    if (is_earlier && limit.in_force.end == window::open) limit.in_force.end = latest_;
  }
}

void history::took_segment(std::size_t request, const device& card, address begin, std::uint64_t bytes) {
  segments_.push_back({.pool = requests_[request].pool,
                       .card = &card,
                       .begin = begin,
                       .bytes = bytes,
                       .of_small_requests = is_small(requests_[request].bytes),
                       .present = {.begin = ++latest_}});
}

void history::returned_segments(const device& card, address begin, std::uint64_t bytes) {
  ++latest_;
  for (held_segment& segment : segments_) {
    const bool is_inside = segment.begin >= begin && segment.begin < begin + bytes;
    if (segment.card == &card && is_inside && segment.present.end == window::open) segment.present.end = latest_;
  }
}

bool history::is_small(std::uint64_t bytes) const noexcept { return setup_.policy == "caching" && bytes <= mib; }

// Whether the policy may keep the segment whole for large requests, of which two came to it before
// (src/heap/whole_segments.hpp).
bool history::stays_whole(const held_segment& segment, std::uint64_t bytes) const noexcept {
  const bool keeps = setup_.policy == "growth" || setup_.policy == "hard_cap" || setup_.policy == "multi_pool";
  const auto is_large = [&](const held_block& block) {
    return block.begin >= segment.begin && block.begin < segment.begin + segment.bytes &&
           block.bytes > segment.bytes / 2;
  };
  return keeps && bytes <= segment.bytes / 4 && std::ranges::count_if(blocks_, is_large) >= 2;
}

std::string history::judge_growth(std::size_t request, const device& card, std::uint64_t bytes, std::uint64_t now_ns,
                                  std::uint64_t work_done_ns) const {
  const asked& asked_for = requests_[request];
  const window during{.begin = asked_for.during.begin, .end = latest_};
  const auto other_request = [&](const asked& each) { return &each != &asked_for && each.during.meets(during); };
  const bool is_alone = std::ranges::none_of(requests_, other_request) && !any_meets(intrusions_, during) &&
                        !any_meets(captures_, during);
  if (paged_ || device_failed_ || !is_alone || work_done_ns > asked_for.begin_ns || !polls_) return {};
  for (const held_segment& segment : segments_) {
    if (segment.card != &card || segment.pool != asked_for.pool || segment.present.begin >= during.begin ||
        segment.present.end != window::open || segment.bytes < asked_for.bytes)
      continue;
    if (setup_.policy == "caching" && segment.of_small_requests != is_small(asked_for.bytes)) continue;
    const auto in_segment = [&](const held_block& block) {
      return block.begin >= segment.begin && block.begin < segment.begin + segment.bytes && block.held.meets(during);
    };
    if (std::ranges::any_of(blocks_, in_segment)) continue;
    if (stays_whole(segment, asked_for.bytes)) continue;
    return fmt::format(
        "a segment of {} MiB is taken at {} ns for a request of {} bytes, although a segment of {} MiB has been idle "
        "since before it",
        bytes / mib, now_ns, asked_for.bytes, segment.bytes / mib);
  }
  return {};
}

std::string history::judge_refusals() {
  for (asked& asked_for : requests_) {
    if (!asked_for.was_refused || asked_for.judged) continue;
    const auto open_beside = [&](const asked& each) {
      return each.during.end == window::open && each.during.begin <= asked_for.during.end;
    };
    if (std::ranges::any_of(requests_, open_beside)) continue;
    asked_for.judged = true;
    if (std::string wrong = judge(asked_for); !wrong.empty()) return wrong;
  }
  return {};
}

// A refusal is right if the memory was in use at some moment of the request, or was unavailable for a reason that the
// rules name: a capture, work that is not done by the deadline, a fault.
std::string history::judge(const asked& asked_for) const {
  if (device_failed_ || asked_for.may_fail || any_meets(captures_, asked_for.during)) return {};
  const std::uint64_t deadline_ns = asked_for.begin_ns + setup_.free_wait_ms * millisecond;
  if (asked_for.work_done_ns > deadline_ns || asked_for.end_ns >= deadline_ns) return {};
  std::uint64_t least_limit = UINT64_MAX;
  for (const pool_limit& limit : limits_) {
    if (limit.pool == asked_for.pool && limit.in_force.meets(asked_for.during))
      least_limit = std::min(least_limit, limit.bytes);
  }
  const std::uint64_t busy = busy_bytes(asked_for);
  const std::uint64_t need = round_to_granule(asked_for.bytes);
  if (busy + need > least_limit) return {};
  return fmt::format(
      "{} bytes are refused with {} MiB of a limit of {} MiB in segments or pages that were in use at any moment of "
      "the request: {}",
      asked_for.bytes, busy / mib, least_limit / mib, asked_for.answer);
}

// Segments, or runs of pages where memory is paged, on which any block was held during the request. Both go back as a
// whole.
std::uint64_t history::busy_bytes(const asked& asked_for) const {
  std::uint64_t busy = 0;
  for (const held_segment& segment : segments_) {
    const auto holds = [&](const held_block& block) {
      return block.pool == asked_for.pool && block.held.meets(asked_for.during) &&
             block.begin < segment.begin + segment.bytes && segment.begin < block.begin + block.bytes &&
             segment.present.meets({.begin = block.served, .end = block.served});
    };
    if (std::ranges::any_of(blocks_, holds)) busy += segment.bytes;
  }
  return busy;
}

// Other threads' caches may count freed blocks as live.
std::uint64_t history::most_live_bytes(std::uint32_t pool) const {
  std::map<moment, std::int64_t> changes;
  for (const held_block& block : blocks_) {
    if (block.pool != pool) continue;
    changes[block.held.begin] += static_cast<std::int64_t>(block.bytes);
    if (block.held.end != window::open) changes[block.held.end] -= static_cast<std::int64_t>(block.bytes);
  }
  std::int64_t held = 0;
  std::int64_t most = 0;
  for (const auto& [when, bytes] : changes) most = std::max(most, held += bytes);
  return static_cast<std::uint64_t>(most) + (setup_.thread_cache ? freed_bytes_ : 0);
}

}  // namespace gpumem::schedules
