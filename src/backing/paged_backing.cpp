#include "paged_backing.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "bits.hpp"
#include "log.hpp"

namespace gpumem {
namespace {

/// An H100 holds about 520,000 mappings (523,404 measured by others); two processes share them.
constexpr std::uint64_t most_mapped_pages = 400'000;

/// Cuts `bytes` at `begin`, whole pages, into the fewest new runs of at most `run_bytes`, of equal length to the page:
/// a block of half the size then frees whole runs, which can move.
void add_new(page_step& step, address begin, std::uint64_t bytes, std::uint64_t run_bytes, std::uint64_t page) {
  while (bytes != 0) {
    const std::uint64_t count = (bytes - 1) / run_bytes + 1;
    const std::uint64_t now = round_up((bytes - 1) / count + 1, page);
    step.runs.push_back({.what = {.begin = 0, .bytes = now, .pages = {}}, .to = begin, .moves = false});
    begin += now;
    bytes -= now;
  }
}

bool holds(const block& b, address at) noexcept { return at >= b.begin && at < b.begin + b.bytes; }

}  // namespace

// Idle runs for the pieces, `bytes` at most: the shortest stretches first, which serve nothing else. What is used of
// each piece, from its beginning, comes back in `filled`.
std::vector<page_step::run> paged_backing::runs_to_move(const std::vector<unbacked_piece>& pieces, page_span keep,
                                                        std::uint64_t bytes, std::vector<std::uint64_t>* filled) const {
  std::vector<idle_stretch> stretches = map_.idle(heap_, keep.begin, keep.end);
  std::ranges::stable_sort(stretches, {}, &idle_stretch::bytes);
  std::vector<page_step::run> moving;
  for (const idle_stretch& stretch : stretches) {
    for (auto it = map_.runs().find(stretch.begin);
         bytes != 0 && it != map_.runs().end() && it->first < stretch.begin + stretch.bytes; ++it) {
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
  std::ranges::sort(moving, {}, [](const page_step::run& r) { return r.what.begin; });
  return moving;
}

paged_backing::verdict paged_backing::plan(const page_place& at, std::uint64_t bytes, const means& may,
                                           page_step* out) const {
  const std::uint64_t page = page_bytes();
  const std::uint64_t mapped = heap_.totals().segment_bytes;
  const std::uint64_t ceiling = most_mapped_pages * page > mapped ? most_mapped_pages * page - mapped : 0;
  const std::uint64_t room = round_down(std::min(may.room_bytes, ceiling), page);
  const page_request& ask = may.policy;
  const std::uint64_t run_bytes = std::max(round_down(std::min(ask.run_bytes, may.run_bytes), page), page);
  const std::uint64_t fresh = std::min(room, round_down(ask.make_bytes, page));

  out->pieces = missing_pieces(heap_, at, bytes, page);
  std::vector<std::uint64_t> filled(out->pieces.size());
  if (ask.moves && fresh < at.missing_bytes && may.unmap) {
    out->runs = runs_to_move(out->pieces, pages_of(at.begin, bytes, page), at.missing_bytes - fresh, &filled);
  }
  std::uint64_t make = at.missing_bytes;
  for (const std::uint64_t moved : filled) make -= moved;
  if (make > fresh && may.poll) return verdict::poll_first;
  if (may.give_back && may.unmap && (make > room || (make > fresh && make - fresh > ask.over_bytes))) {
    out->new_bytes = make - fresh;
    return verdict::give_back_first;
  }
  if (make > room) return verdict::impossible;
  for (std::size_t p = 0; p < out->pieces.size(); ++p) {
    add_new(*out, out->pieces[p].begin + filled[p], out->pieces[p].bytes - filled[p], run_bytes, page);
  }
  if (fresh > at.missing_bytes && may.give_back) make += plan_ahead(fresh - at.missing_bytes, run_bytes, out);
  out->new_bytes = make;
  return verdict::ready;
}

// Extends the last piece by up to so many bytes of what is unbacked behind it; the bytes that it was extended by.
std::uint64_t paged_backing::plan_ahead(std::uint64_t bytes, std::uint64_t run_bytes, page_step* out) const {
  unbacked_piece& last = out->pieces.back();
  const block& b = heap_.at(unbacked_at(last.begin));
  const std::uint64_t end = last.begin + last.bytes;
  const std::uint64_t more = std::min(bytes, b.begin + b.bytes - end);
  add_new(*out, end, more, run_bytes, page_bytes());
  last.bytes += more;
  return more;
}

block_index paged_backing::unbacked_at(address at) const noexcept {
  block_index i = heap_.first_unbacked();
  while (!holds(heap_.at(i), at)) i = heap_.at(i).in_index.newer;
  return i;
}

// The block that is free for `o`, or idle, and holds that address; none where it is in use.
block_index paged_backing::free_at(address at, owner_id o) const noexcept {
  for (const owner_id each : {idle_owner, o}) {
    for (block_index i = heap_.oldest_free(each); i != no_block; i = heap_.at(i).in_index.newer) {
      if (holds(heap_.at(i), at)) return i;
    }
  }
  return no_block;
}

// The stretch was idle. It still has memory, but leaves the heap's books (unbacked) and the page map.
void paged_backing::take(address begin, std::uint64_t bytes) {
  heap_.decommit(free_at(begin, idle_owner), begin, bytes);
  lost_bytes_ += bytes;
  map_.erase(begin, bytes);
}

void paged_backing::begin(const page_step& step) {
  const auto runs = static_cast<std::uint32_t>(step.runs.size());
  map_.make_room(runs);
  if (!step.may_unmap) stranded_.reserve(stranded_.size() + runs);
  heap_.make_room_for_blocks(4 * runs);  // two where a run was, two where it goes
  for (std::size_t k = 0; k < step.runs.size() && step.runs[k].moves;) {
    const address begin = step.runs[k].what.begin;
    address end = begin;
    const block& from = heap_.at(free_at(begin, idle_owner));
    const address block_end = from.begin + from.bytes;
    for (; k < step.runs.size() && step.runs[k].moves && step.runs[k].what.begin == end && end < block_end; ++k) {
      end += step.runs[k].what.bytes;
    }
    take(begin, end - begin);
  }
  heap_.set_blocks_aside(2 * runs);
}

paged_backing::finished paged_backing::finish(const page_step& step) {
  heap_.set_blocks_aside(0);
  finished done;
  for (const page_step::run& r : step.runs) {
    const std::uint64_t bytes = r.what.bytes;
    switch (r.is) {
      case page_step::outcome::arrived:
        map_.insert({r.to, bytes, r.what.pages});
        (r.moves ? done.remapped_pages : done.mapped_pages) += bytes / page_bytes();
        heap_.commit(unbacked_at(r.to), r.to, bytes);
        if (!r.moves) done.new_bytes += bytes;
        break;
      case page_step::outcome::untouched:
        if (!r.moves) continue;
        map_.insert(r.what);
        heap_.commit(unbacked_at(r.what.begin), r.what.begin, bytes);
        break;
      case page_step::outcome::destroyed:
        if (r.moves) done.gone_bytes += bytes;
        break;
      case page_step::outcome::stranded:
        stranded_.push_back({r.to, bytes, r.what.pages});
        [[fallthrough]];
      case page_step::outcome::lost:
        if (r.moves) continue;  // as it was when it left the heap
        lost_bytes_ += bytes;
        done.new_bytes += bytes;
        continue;
    }
    if (r.moves) lost_bytes_ -= bytes;
  }
  map_.make_room(0);
  return done;
}

// A search for the place may have made what was idle there the stream's (`absorb_idle`).
block_index paged_backing::carve(const page_place& at, std::uint64_t bytes, owner_id o, address within) {
  block_index first = free_at(within, o);
  if (first == no_block) return no_block;
  while (heap_.at(first).begin > at.begin) {
    first = heap_.at(first).below;
    if (heap_.at(first).state != block_state::free) return no_block;
  }
  address reached = at.begin;
  for (block_index i = first; i != no_block && reached < at.begin + bytes; i = heap_.at(i).above) {
    const block& b = heap_.at(i);
    if (b.state != block_state::free || (b.owner != o && b.owner != idle_owner)) return no_block;
    reached = b.begin + b.bytes;
  }
  return reached < at.begin + bytes ? no_block : heap_.carve_at(first, at.begin, bytes, o);
}

std::vector<mapped_run> paged_backing::take_longest_idle(std::uint64_t bytes, page_span keep) {
  const std::vector<idle_stretch> idle = map_.idle(heap_, keep.begin, keep.end);
  const auto longest = std::ranges::max_element(idle, {}, &idle_stretch::bytes);
  if (longest == idle.end()) return {};
  const address end = longest->begin + longest->bytes;
  address begin = end;
  std::vector<mapped_run> going;
  for (auto it = map_.runs().lower_bound(end); begin != longest->begin && end - begin < bytes;) {
    begin = (--it)->first;
    going.push_back(it->second);
  }
  std::ranges::reverse(going);
  map_.make_room(going.size());  // runs that the driver does not unmap are put back
  heap_.make_room_for_blocks(4);
  take(begin, end - begin);
  heap_.set_blocks_aside(2);
  return going;
}

void paged_backing::finish(std::span<const mapped_run> going, const returned_runs& done) {
  heap_.set_blocks_aside(0);
  const address begin = going.front().begin;
  const std::uint64_t bytes = going.back().begin + going.back().bytes - begin;
  lost_bytes_ -= done.unmapped ? done.destroyed : bytes;
  if (!done.unmapped) {
    for (const mapped_run& run : going) map_.insert(run);
    heap_.commit(unbacked_at(begin), begin, bytes);
  }
  map_.make_room(0);
}

// A run that the driver does not unmap stays lost, as do its addresses.
void paged_backing::finish_stranded(const returned_runs& done) noexcept {
  stranded_.pop_back();
  lost_bytes_ -= done.destroyed;
}

// An unmap does not wait for what is still in flight, as a free does.
void paged_backing::return_everything() {
  for (const mapped_run& run : stranded_) static_cast<void>(return_runs(device_, {&run, 1}));
  if (map_.runs().empty()) return;
  if (const status done = device_.synchronize(); !done) {
    log_if_possible([&] { return fmt::format("pool {}: its pages stay with the driver: {}", name_, done.message()); });
    return;
  }
  status why;
  for (auto run = map_.runs().begin(); run != map_.runs().end();) {
    auto last = run;
    address end = run->first;
    for (; last != map_.runs().end() && last->first == end; ++last) end += last->second.bytes;
    status unmapped = device_.unmap(run->first, end - run->first);
    for (; run != last; ++run) {
      status gone = unmapped ? device_.destroy(run->second.pages) : unmapped;
      if (why && !gone) why = std::move(gone);
    }
  }
  if (why) return;
  log_if_possible([&] { return fmt::format("pool {}: pages stay with the driver: {}", name_, why.message()); });
}

status paged_backing::check() const {
  const auto broken = [this](std::string_view what, std::uint64_t a, std::uint64_t b) {
    return status{errc::corrupt, fmt::format("pool {}: {}: {:#x} and {:#x}", name_, what, a, b)};
  };
  const std::uint64_t page = page_bytes();
  std::uint64_t bytes = 0;
  address end = 0;
  for (const auto& [begin, run] : map_.runs()) {
    if (begin < end || begin % page != 0 || run.bytes % page != 0 || run.bytes == 0)
      return broken("runs that overlap or are not whole pages", begin, end);
    end = begin + run.bytes;
    bytes += run.bytes;
  }
  if (bytes != heap_.totals().segment_bytes)
    return broken("bytes of the runs and of the heap differ", bytes, heap_.totals().segment_bytes);
  for (block_index i = heap_.first_unbacked(); i != no_block; i = heap_.at(i).in_index.newer) {
    const block& b = heap_.at(i);
    if (b.begin % page != 0 || b.bytes % page != 0) return broken("unbacked, but not whole pages", b.begin, b.bytes);
    if (map_.touches(b.begin, b.bytes)) return broken("memory behind a unbacked block", b.begin, b.bytes);
  }
  return {};
}

}  // namespace gpumem
