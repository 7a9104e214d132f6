// A pool that takes memory page by page: what is missing behind a request is made new or moved there from idle memory.
//
// The place comes from page_place, how much may be made new from the policy, the calls from page_step. Whoever changes
// what is mapped holds the growth ticket. Pages move only from idle blocks, whose fences are done; while a capture is
// under way nothing is unmapped. Runs on the way belong to nobody (`lost_bytes_`) and stay in the budget.
#include <fmt/format.h>

#include <algorithm>
#include <new>
#include <span>

#include "bits.hpp"
#include "log.hpp"
#include "page_place.hpp"
#include "page_step.hpp"
#include "pool.hpp"

namespace gpumem {
namespace {

/// An H100 holds about 520,000 mappings (523,404 measured by others); two processes share them.
constexpr std::uint64_t most_mapped_pages = 400'000;
/// Of planning anew, when the device or the limit gave less than they seemed to have.
constexpr unsigned most_rounds = 8;

/// Cuts `bytes` at `begin` into new runs of at most `run_bytes`.
void add_new(page_step& step, address begin, std::uint64_t bytes, std::uint64_t run_bytes) {
  while (bytes != 0) {
    const std::uint64_t now = std::min(bytes, run_bytes);
    step.runs.push_back({.what = {.begin = 0, .bytes = now, .pages = {}}, .to = begin, .moves = false});
    begin += now;
    bytes -= now;
  }
}

}  // namespace

// Another range of addresses, as large as the policy asks, or at least as it allows or the request needs. False where
// the driver has none; where it was to be the first one, the pool may take segments from then on.
bool pool::add_range(guard& lock, want& w) {
  const std::uint64_t page = device_.info().page_bytes;
  const std::optional<std::uint64_t> least = checked_round_up(w.bytes + (w.alignment - block_granularity), page);
  if (!least) return false;
  const heap_totals& held = heap_.totals();
  const bool or_segments = page_rules_.least_range_bytes != 0 && held.segment_bytes + held.hollow_bytes == 0;
  const std::uint64_t shortest = or_segments ? std::max(round_up(page_rules_.least_range_bytes, page), *least) : *least;
  std::uint64_t bytes = std::max(round_up(page_rules_.range_bytes, page), shortest);
  for (;;) {
    const result<address> range = with_room_for_segment(lock, [&] { return device_.reserve(bytes); });
    if (range.ok()) {
      const segment_index s = heap_.add_hollow_segment(*range, bytes, w.klass);
      note_backing(s, {.begin = *range, .bytes = bytes, .kind = segment_kind::paged, .pages = {}});
      return true;
    }
    const bool refused = range.code() == errc::out_of_memory;
    if (!refused || bytes == shortest) {
      if (or_segments && range.code() != errc::host_failure) {  // not paged from here on
        page_rules_ = {};
        best_fit_ = best_fit{page_rules_};
        log_if_possible([&] {
          return fmt::format("pool {} ({}): takes segments, no region of addresses could be reserved: {}", config_.name,
                             config_.policy_name, range.why().message());
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

pool::page_span pool::pages_of(const page_place& at, std::uint64_t bytes) const {
  const std::uint64_t page = device_.info().page_bytes;
  return {round_down(at.begin, page), round_up(at.begin + bytes, page)};
}

// Idle runs for the pieces, `bytes` at most: the shortest stretches first, which serve nothing else. What is used of
// each piece, from its beginning, comes back in `filled`.
std::vector<page_step::run> pool::runs_to_move(const std::vector<hollow_piece>& pieces, const page_place& at,
                                               std::uint64_t need_bytes, std::uint64_t bytes,
                                               std::vector<std::uint64_t>* filled) const {
  const page_span keep = pages_of(at, need_bytes);
  std::vector<idle_stretch> stretches = pages_.idle(heap_, keep.begin, keep.end);
  std::stable_sort(stretches.begin(), stretches.end(),
                   [](const idle_stretch& a, const idle_stretch& b) { return a.bytes < b.bytes; });
  std::vector<page_step::run> moving;
  for (const idle_stretch& stretch : stretches) {
    for (auto it = pages_.runs().find(stretch.begin);
         bytes != 0 && it != pages_.runs().end() && it->first < stretch.begin + stretch.bytes; ++it) {
      const mapped_run& run = it->second;
      if (run.bytes > bytes) continue;
      for (std::size_t p = 0; p < pieces.size(); ++p) {
        if (pieces[p].bytes - (*filled)[p] < run.bytes) continue;
        moving.push_back({.what = run, .to = pieces[p].begin + (*filled)[p], .moves = true});
        (*filled)[p] += run.bytes;
        bytes -= run.bytes;
        break;
      }
    }
    if (bytes == 0) break;
  }
  std::sort(moving.begin(), moving.end(),
            [](const page_step::run& a, const page_step::run& b) { return a.what.begin < b.what.begin; });
  return moving;
}

// What is done about the pages that are missing there. Where runs have to be given back first, `out->new_bytes` says
// how much of them.
pool::page_plan pool::plan_pages(const want& w, const page_place& at, new_pages_at_most most, page_means left,
                                 page_step* out) const {
  const std::uint64_t page = device_.info().page_bytes;
  const std::uint64_t mapped = heap_.totals().segment_bytes;
  const std::uint64_t ceiling = most_mapped_pages * page > mapped ? most_mapped_pages * page - mapped : 0;
  const std::uint64_t room = round_down(std::min({most.bytes, budget_.left(), ceiling}), page);
  const page_request ask = policy_.page_in(view(), w.bytes, at.missing_bytes);
  const std::uint64_t run_bytes = std::max(round_down(std::min(ask.run_bytes, most.run_bytes), page), page);
  const std::uint64_t fresh = std::min(room, round_down(ask.make_bytes, page));

  out->pieces = missing_pieces(heap_, at, w.bytes, page);
  std::vector<std::uint64_t> filled(out->pieces.size());
  if (ask.moves && fresh < at.missing_bytes && streams_.captures() == 0) {
    out->runs = runs_to_move(out->pieces, at, w.bytes, at.missing_bytes - fresh, &filled);
  }
  std::uint64_t make = at.missing_bytes;
  for (const std::uint64_t bytes : filled) make -= bytes;
  if (make > fresh && left.wait && may_settle()) return page_plan::wait_first;
  if (left.give_back && streams_.captures() == 0 && (make > room || (make > fresh && make - fresh > ask.over_bytes))) {
    out->new_bytes = make - fresh;
    return page_plan::give_back_first;
  }
  if (make > room) return page_plan::impossible;
  for (std::size_t p = 0; p < out->pieces.size(); ++p) {
    add_new(*out, out->pieces[p].begin + filled[p], out->pieces[p].bytes - filled[p], run_bytes);
  }
  if (fresh > at.missing_bytes && left.give_back) make += plan_ahead(fresh - at.missing_bytes, run_bytes, out);
  out->new_bytes = make;
  return page_plan::ready;
}

// Extends the last piece by up to so many bytes of what is hollow behind it; the bytes that it was extended by.
std::uint64_t pool::plan_ahead(std::uint64_t bytes, std::uint64_t run_bytes, page_step* out) const {
  hollow_piece& last = out->pieces.back();
  const block& b = heap_.at(hollow_at(last.begin));
  const std::uint64_t end = last.begin + last.bytes;
  const std::uint64_t more = std::min(bytes, b.begin + b.bytes - end);
  add_new(*out, end, more, run_bytes);
  last.bytes += more;
  return more;
}

block_index pool::hollow_at(address at) const {
  block_index i = heap_.first_hollow();
  while (at < heap_.at(i).begin || at >= heap_.at(i).begin + heap_.at(i).bytes) i = heap_.at(i).in_index.newer;
  return i;
}

// The block that is free for `o`, or idle, and holds that address; none where it is in use.
block_index pool::free_at(address at, owner_id o) const {
  for (const owner_id each : {idle_owner, o}) {
    for (block_index i = heap_.oldest_free(each); i != no_block; i = heap_.at(i).in_index.newer) {
      if (at >= heap_.at(i).begin && at < heap_.at(i).begin + heap_.at(i).bytes) return i;
    }
  }
  return no_block;
}

// The idle block that holds all of it. Requires that there is one.
block_index pool::idle_at(address at) const {
  block_index i = heap_.oldest_free(idle_owner);
  while (at < heap_.at(i).begin || at >= heap_.at(i).begin + heap_.at(i).bytes) i = heap_.at(i).in_index.newer;
  return i;
}

// True where waiting for fences may make more memory idle.
bool pool::may_settle() const {
  return streams_.captures() == 0 && (heap_.totals().cached_bytes != 0 || !uses_.waiting().empty());
}

// The stretch has memory behind it still, but is nobody's: hollow to the heap, out of the map.
void pool::take_stretch(address begin, std::uint64_t bytes) {
  heap_.unback(idle_at(begin), begin, bytes);
  lost_bytes_ += bytes;
  pages_.erase(begin, bytes);
}

void pool::take_moving(const page_step& step) {
  for (std::size_t k = 0; k < step.runs.size() && step.runs[k].moves;) {
    const address begin = step.runs[k].what.begin;
    address end = begin;
    const block_index from = idle_at(begin);
    const address block_end = heap_.at(from).begin + heap_.at(from).bytes;
    for (; k < step.runs.size() && step.runs[k].moves && step.runs[k].what.begin == end && end < block_end; ++k) {
      end += step.runs[k].what.bytes;
    }
    take_stretch(begin, end - begin);
  }
}

// Takes into account what the device calls have made of every run. Requires room for two blocks a run, and for the run.
void pool::settle_step(const page_step& step, reservation* reserved) {
  const std::uint64_t page = device_.info().page_bytes;
  std::uint64_t new_bytes = 0;
  bool moved = false;
  for (const page_step::run& r : step.runs) {
    const std::uint64_t bytes = r.what.bytes;
    switch (r.is) {
      case page_step::fate::arrived:
        pages_.insert({r.to, bytes, r.what.pages});
        moved = moved || r.moves;
        (r.moves ? counts_.remapped_pages : counts_.mapped_pages) += bytes / page;
        heap_.back(hollow_at(r.to), r.to, bytes);
        break;
      case page_step::fate::untouched:
        if (!r.moves) continue;
        pages_.insert(r.what);
        heap_.back(hollow_at(r.what.begin), r.what.begin, bytes);
        break;
      case page_step::fate::destroyed:
        if (r.moves) budget_.give_back(bytes);
        break;
      case page_step::fate::lost:
        if (r.moves) continue;
        lost_bytes_ += bytes;
        new_bytes += bytes;
        continue;
    }
    if (r.moves) {
      lost_bytes_ -= bytes;
    } else if (r.is == page_step::fate::arrived) {
      new_bytes += bytes;
    }
  }
  pages_.make_room(0);
  reserved->settle(new_bytes);
  counts_.taken_bytes += new_bytes;
  counts_.peak_reserved_bytes = std::max(counts_.peak_reserved_bytes, budget_.reserved());
  if (moved) lookahead_.wake();
  if (new_bytes != 0) policy_.grew(view(), new_bytes);
}

// The block for the request at its place, of which `within` has just got its memory; none where another thread has
// taken part of it meanwhile. A search for it may have made what was idle there the stream's (`absorb_idle`).
block_index pool::carve_place(const want& w, const page_place& at, address within) {
  block_index first = free_at(within, w.owner);
  if (first == no_block) return no_block;
  while (heap_.at(first).begin > at.begin) {
    first = heap_.at(first).below;
    if (heap_.at(first).state != block_state::free) return no_block;
  }
  address reached = at.begin;
  for (block_index i = first; i != no_block && reached < at.begin + w.bytes; i = heap_.at(i).above) {
    const block& b = heap_.at(i);
    if (b.state != block_state::free || (b.owner != w.owner && b.owner != idle_owner)) return no_block;
    reached = b.begin + b.bytes;
  }
  return reached < at.begin + w.bytes ? no_block : heap_.carve_at(first, at.begin, w.bytes, w.owner);
}

// Requires the ticket, and so many bytes of the budget. Gives the lock up for the calls. All host memory that the step
// needs is taken before it begins: nothing is half done where there is none.
status pool::carry(guard& lock, page_step& step, reservation* reserved) {
  const auto runs = static_cast<std::uint32_t>(step.runs.size());
  pages_.make_room(runs);
  heap_.make_room_for_blocks(4 * runs);  // two where a run was, two where it goes
  take_moving(step);
  heap_.set_blocks_aside(2 * runs);
  status done;
  {
    const blocking_call waits{calls_.waits, lock, mutex_};
    done = carry_out(device_, step);
  }
  heap_.set_blocks_aside(0);
  settle_step(step, reserved);
  return done;
}

// Requires the ticket. Where the request was placed, `w.placed` says so.
pool::growth pool::page_in(guard& lock, want& w) {
  if (page_in_ahead(lock, w)) return growth::grew;
  w.placed = search(w);  // looking ahead may have waited
  if (w.placed != no_block) return growth::grew;
  new_pages_at_most most;
  page_means left;
  for (unsigned round = 0; round < most_rounds; ++round) {
    const std::optional<page_place> at =
        cheapest_place(heap_, w.klass, w.owner, w.bytes, w.alignment, device_.info().page_bytes);
    if (!at) {
      if (!add_range(lock, w)) return growth::refused;
      continue;
    }
    if (at->missing_bytes == 0) {
      w.placed = heap_.carve_at(at->first, at->begin, w.bytes, w.owner);
      return growth::grew;
    }
    page_step step;
    switch (plan_pages(w, *at, most, left, &step)) {
      case page_plan::wait_first:
        left.wait = false;
        if (wait_for_fences(lock)) poll(lock);
        continue;
      case page_plan::give_back_first:
        // Idle runs may be too long for the pieces: given back, they make room for others.
        left.give_back = false;
        static_cast<void>(return_stretches(lock, step.new_bytes, pages_of(*at, w.bytes)));
        continue;
      case page_plan::impossible:
        (budget_.left() < at->missing_bytes ? w.limit_refused : w.device_refused) = true;
        return growth::refused;
      case page_plan::ready:
        break;
    }
    if (!budget_.reserve(step.new_bytes)) continue;  // the limit was lowered in between
    reservation reserved{budget_, step.new_bytes};
    const status done = carry(lock, step, &reserved);
    if (done.ok()) {
      w.placed = search(w);  // the new memory may have filled a gap that fits better than the place
      if (w.placed == no_block) w.placed = carve_place(w, *at, step.pieces.front().begin);
      return w.placed != no_block ? growth::grew : growth::waited;
    }
    if (done.code() != errc::out_of_memory) {
      w.driver_error = done;
      return growth::refused;
    }
    w.device_refused = true;
    // What was refused was too long a run, and perhaps not the last page: less by a page, in runs half as long.
    const std::uint64_t page = device_.info().page_bytes;
    const std::uint64_t refused = step.refused_bytes;
    most.bytes = std::min(step.made_bytes + (refused > page ? refused - page : 0), step.new_bytes - 1);
    if (refused > page) most.run_bytes = std::max(page, round_down(refused / 2, page));
  }
  return growth::refused;
}

// Requires the ticket. Gives idle runs back, the longest stretches first, until so many bytes went.
std::uint64_t pool::return_stretches(guard& lock, std::uint64_t bytes, page_span keep) {
  const std::uint64_t page = device_.info().page_bytes;
  std::uint64_t returned = 0;
  while (returned < bytes && streams_.captures() == 0) {
    const std::vector<idle_stretch> idle = pages_.idle(heap_, keep.begin, keep.end);
    const auto longest = std::max_element(
        idle.begin(), idle.end(), [](const idle_stretch& a, const idle_stretch& b) { return a.bytes < b.bytes; });
    if (longest == idle.end()) break;
    // From its upper end, as many whole runs as are wanted.
    address begin = longest->begin + longest->bytes;
    for (auto it = pages_.runs().lower_bound(begin);
         begin != longest->begin && longest->begin + longest->bytes - begin < bytes - returned;) {
      begin = (--it)->first;
    }
    const std::uint64_t size = longest->begin + longest->bytes - begin;
    const std::vector<mapped_run> going = pages_.within(begin, size);
    pages_.make_room(going.size());  // what the driver does not unmap is put back
    heap_.make_room_for_blocks(4);
    take_stretch(begin, size);
    heap_.set_blocks_aside(2);
    returned_runs done;
    {
      const blocking_call waits{calls_.waits, lock, mutex_};
      done = return_runs(device_, going);
      if (!done.why) {
        log_if_possible([&] {
          return fmt::format("pool {}: {} of {} that were to go are {}, the driver did not take them back: {}",
                             config_.name, format_bytes(size - done.destroyed), format_bytes(size),
                             done.unmapped ? "leaked" : "kept", done.why.message());
        });
      }
    }
    heap_.set_blocks_aside(0);
    lost_bytes_ -= done.unmapped ? done.destroyed : size;
    if (!done.unmapped) {
      for (const mapped_run& run : going) pages_.insert(run);
      heap_.back(hollow_at(begin), begin, size);
    }
    pages_.make_room(0);
    budget_.give_back(done.destroyed);
    returned += done.destroyed;
    counts_.returned_pages += done.destroyed / page;
    if (!done.why) break;
  }
  return returned;
}

std::uint64_t pool::return_pages(guard& lock, std::uint64_t bytes) {
  while (growth_.taken()) growth_.wait_for_ticket(lock);
  const growth_ticket ticket{growth_};
  return return_stretches(lock, bytes, {});
}

// At the end of the pool's life. An unmap does not wait for what is still in flight, as a free does.
void pool::return_everything_paged() {
  if (pages_.runs().empty()) return;
  if (const status done = device_.synchronize(); !done) {
    log_if_possible(
        [&] { return fmt::format("pool {}: its pages stay with the driver: {}", config_.name, done.message()); });
    return;
  }
  const auto give = [&](std::span<const mapped_run> runs) {
    if (const status why = return_runs(device_, runs).why; !why) {
      log_if_possible(
          [&] { return fmt::format("pool {}: pages stay with the driver: {}", config_.name, why.message()); });
    }
  };
  std::vector<mapped_run> together;
  try {
    together.reserve(pages_.runs().size());
  } catch (const std::bad_alloc&) {  // then each run is unmapped alone
    for (const auto& [begin, run] : pages_.runs()) give({&run, 1});
    return;
  }
  for (const auto& [begin, run] : pages_.runs()) {
    if (!together.empty() && together.back().begin + together.back().bytes != begin) {
      give(together);
      together.clear();
    }
    together.push_back(run);
  }
  give(together);
}

// Every run has memory of the heap before it, and nothing hollow.
status pool::check_pages() const {
  if (!paged()) return {};
  const auto broken = [this](std::string_view what, std::uint64_t a, std::uint64_t b) {
    return status{errc::corrupt, fmt::format("pool {}: {}: {:#x} and {:#x}", config_.name, what, a, b)};
  };
  const std::uint64_t page = device_.info().page_bytes;
  std::uint64_t bytes = 0;
  address end = 0;
  for (const auto& [begin, run] : pages_.runs()) {
    if (begin < end || begin % page != 0 || run.bytes % page != 0 || run.bytes == 0)
      return broken("runs that overlap or are not whole pages", begin, end);
    end = begin + run.bytes;
    bytes += run.bytes;
  }
  if (bytes != heap_.totals().segment_bytes)
    return broken("bytes of the runs and of the heap differ", bytes, heap_.totals().segment_bytes);
  for (block_index i = heap_.first_hollow(); i != no_block; i = heap_.at(i).in_index.newer) {
    const block& b = heap_.at(i);
    if (b.begin % page != 0 || b.bytes % page != 0) return broken("hollow, but not whole pages", b.begin, b.bytes);
    if (pages_.touches(b.begin, b.bytes)) return broken("memory behind a hollow block", b.begin, b.bytes);
  }
  return {};
}

}  // namespace gpumem
