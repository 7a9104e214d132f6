#include "pager.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "bits.hpp"
#include "log.hpp"

namespace gpumem {
namespace {

/// Of planning anew, when the device or the limit gave less than they seemed to have.
constexpr unsigned most_rounds = 8;

}  // namespace

// Another range of addresses, as large as the policy asks, or at least as it allows or the request needs. False where
// the driver has none; where it was to be the first one, the pool may take segments from then on.
bool pager::add_range(arena_lock& lock, pending_request& w) {
  const std::uint64_t page = in_.pages.page_bytes();
  const std::optional<std::uint64_t> least = checked_round_up(w.bytes + (w.alignment - block_granularity), page);
  if (!least) return false;
  const heap_totals& held = in_.blocks.totals();
  const bool or_segments = in_.rules.least_range_bytes != 0 && held.segment_bytes + held.unbacked_bytes == 0;
  const std::uint64_t shortest = or_segments ? std::max(round_up(in_.rules.least_range_bytes, page), *least) : *least;
  std::uint64_t bytes = std::max(round_up(in_.rules.range_bytes, page), shortest);
  for (;;) {
    const result<address> range = in_.with_room_for_segment(lock, [&] { return in_.on.reserve(bytes); });
    if (range.ok()) {
      in_.blocks.add_segment(*range, bytes, w.klass, false);
      ++in_.counts.grown_segments;
      return true;
    }
    const bool refused = range.code() == errc::out_of_memory;
    if (!refused || bytes == shortest) {
      if (or_segments && range.code() != errc::host_failure) {  // not paged from here on
        in_.rules = {};
        in_.fits = best_fit{in_.rules};
        log_if_possible([&] {
          return fmt::format("pool {} ({}): takes segments, no region of addresses could be reserved: {}",
                             in_.config.name, in_.config.policy_name, range.why().message());
        });
      } else if (refused) {
        w.device_refused = true;
      } else {
        w.driver_error = range.why();
      }
      return false;
    }
    bytes = std::max(round_down(bytes / 2, page), shortest);
  }
}

// `may`: what is left to be tried, and what the device refused.
paged_backing::verdict pager::plan(const pending_request& w, const page_place& at, paged_backing::means may,
                                   page_step* out) const {
  may.policy = in_.decides.page_in(in_.view(), w.bytes, at.missing_bytes);
  may.room_bytes = std::min(may.room_bytes, in_.cap.left());
  may.unmap = in_.streams.captures() == 0;
  may.wait = may.wait && may.unmap && (in_.blocks.totals().cached_bytes != 0 || !in_.uses.waiting().empty());
  return in_.pages.plan(at, w.bytes, may, out);
}

// Requires the ticket, and so many bytes of the budget. Gives the lock up for the calls. All host memory that the step
// needs is taken before it begins: nothing is half done where there is none.
status pager::execute(arena_lock& lock, page_step& step, reservation* reserved) {
  in_.pages.begin(step);
  status done = in_.waits.make(lock, [&] { return gpumem::execute(in_.on, step); });
  const paged_backing::finished made = in_.pages.finish(step);
  if (made.gone_bytes != 0) in_.cap.give_back(made.gone_bytes);
  in_.counts.mapped_pages += made.mapped_pages;
  in_.counts.remapped_pages += made.remapped_pages;
  reserved->keep(made.new_bytes);
  in_.count_taken(made.new_bytes);
  if (made.new_bytes != 0) in_.decides.grew(in_.view(), made.new_bytes);
  return done;
}

grown pager::page_in(arena_lock& lock, pending_request& w) {
  paged_backing::means may;
  for (unsigned round = 0; round < most_rounds; ++round) {
    const std::optional<page_place> at =
        cheapest_place(in_.blocks, w.klass, w.owner, w.bytes, w.alignment, in_.pages.page_bytes());
    if (!at) {
      if (!add_range(lock, w)) return grown::refused;
      continue;
    }
    if (at->missing_bytes == 0) {
      w.placed = in_.blocks.carve_at(at->first, at->begin, w.bytes, w.owner);
      return grown::grew;
    }
    page_step step;
    using verdict = paged_backing::verdict;
    switch (plan(w, *at, may, &step)) {
      case verdict::wait_first:
        may.wait = false;
        fences_.wait_for_all(lock);
        continue;
      case verdict::give_back_first:
        // Idle runs may be too long for the pieces: given back, they make room for others.
        may.give_back = false;
        return_stretches(lock, step.new_bytes, pages_of(at->begin, w.bytes, in_.pages.page_bytes()));
        continue;
      case verdict::impossible:
        (in_.cap.left() < at->missing_bytes ? w.limit_refused : w.device_refused) = true;
        return grown::refused;
      case verdict::ready:
        break;
    }
    if (!in_.cap.reserve(step.new_bytes)) continue;  // the limit was lowered in between
    reservation reserved{in_.cap, step.new_bytes};
    const status done = execute(lock, step, &reserved);
    if (done.ok()) {
      w.placed = in_.search(w);  // the new memory may have filled a gap that fits better than the place
      if (w.placed == no_block) w.placed = in_.pages.carve(*at, w.bytes, w.owner, step.pieces.front().begin);
      return w.placed != no_block ? grown::grew : grown::waited;
    }
    if (done.code() != errc::out_of_memory) {
      w.driver_error = done;
      return grown::refused;
    }
    w.device_refused = true;
    // What was refused was too long a run, and perhaps not the last page: less by a page, in runs half as long.
    const std::uint64_t page = in_.pages.page_bytes();
    const std::uint64_t refused = step.refused_bytes;
    may.room_bytes = std::min(step.made_bytes + (refused > page ? refused - page : 0), step.new_bytes - 1);
    if (refused > page) may.run_bytes = std::max(page, round_down(refused / 2, page));
  }
  return grown::refused;
}

// Requires the ticket.
std::uint64_t pager::return_stretches(arena_lock& lock, std::uint64_t bytes, page_span keep) {
  std::uint64_t returned = 0;
  while (returned < bytes && in_.streams.captures() == 0) {
    const std::vector<mapped_run> going = in_.pages.take_longest_idle(bytes - returned, keep);
    if (going.empty()) break;
    const std::uint64_t size = going.back().begin + going.back().bytes - going.front().begin;
    const returned_runs done = in_.waits.make(lock, [&] { return return_runs(in_.on, going); });
    if (!done.why) {
      log_if_possible([&] {
        return fmt::format("pool {}: {} of {} that were to go are {}, the driver did not take them back: {}",
                           in_.config.name, format_bytes(size - done.destroyed), format_bytes(size),
                           done.unmapped ? "leaked" : "kept", done.why.message());
      });
    }
    in_.pages.finish(going, done);
    in_.cap.give_back(done.destroyed);
    returned += done.destroyed;
    in_.counts.returned_pages += done.destroyed / in_.pages.page_bytes();
    if (!done.why) break;
  }
  return returned;
}

std::uint64_t pager::return_pages(arena_lock& lock, std::uint64_t bytes) {
  while (in_.gate.taken()) in_.gate.wait_for_ticket(lock);
  const growth_ticket ticket{in_.gate};
  return return_stretches(lock, bytes, {});
}

}  // namespace gpumem
