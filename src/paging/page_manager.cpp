// Chooses which pages move (`move_runs`) and how many are created, and updates the heap afterwards.
#include "page_manager.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <utility>

#include "bits.hpp"
#include "log.hpp"

namespace gpumem {
namespace {

/// An H100 holds about 520,000 mappings (523,404 measured by others); two processes share them.
constexpr std::uint64_t most_mapped_pages = 400'000;

/// Splits `bytes` at `begin` (whole pages) into the fewest new runs of at most `run_bytes`, equal in length to within a
/// page.
void add_new(remap_batch& step, address begin, std::uint64_t bytes, std::uint64_t run_bytes, std::uint64_t page) {
  while (bytes != 0) {
    const std::uint64_t count = (bytes - 1) / run_bytes + 1;
    const std::uint64_t length = round_up((bytes - 1) / count + 1, page);
    step.runs.push_back({.source = {.begin = 0, .bytes = length, .pages = {}}, .target = begin, .moves = false});
    begin += length;
    bytes -= length;
  }
}

/// True for a run that touches `keep`.
std::function<bool(const mapped_run&)> touches(page_span keep) {
  return [keep](const mapped_run& run) { return run.begin < keep.end && run.begin + run.bytes > keep.begin; };
}

bool holds(const block& candidate, address target) noexcept {
  return target >= candidate.begin && target < candidate.begin + candidate.bytes;
}

}  // namespace

// True for a run that touches `keep` or is mapped at its old addresses, too: the device would keep such a run if it
// were destroyed, as when it goes back, or when a step that moves it fails.
std::function<bool(const mapped_run&)> page_manager::unfit(page_span keep) const {
  std::set<std::uint64_t> mapped_twice;
  for (const vacating_run& each : vacating_) mapped_twice.insert(each.run.pages.id);
  return [skips = touches(keep), mapped_twice = std::move(mapped_twice)](const mapped_run& run) {
    return skips(run) || mapped_twice.contains(run.pages.id);
  };
}

// Chooses runs of at most `bytes` outside `keep` to move into the pieces of the step, from the shortest stretches
// first, because short stretches serve little else. They are free for `owner` (idle, for `idle_owner`). Adds to
// `filled` the bytes used of each piece, counted from its beginning. Returns the bytes that move.
std::uint64_t page_manager::move_runs(owner_id owner, page_span keep, std::uint64_t bytes,
                                      std::vector<std::uint64_t>* filled, remap_batch* step) const {
  const std::uint64_t most = bytes;
  const std::vector<unbacked_piece>& pieces = step->pieces;
  std::vector<free_stretch> stretches = map_.stretches(heap_, owner, owner == idle_owner ? unfit(keep) : touches(keep));
  std::ranges::stable_sort(stretches, {}, &free_stretch::bytes);
  std::vector<remap_batch::run> moving;
  for (const free_stretch& stretch : stretches) {
    for (auto entry = map_.runs().find(stretch.begin);
         bytes != 0 && entry != map_.runs().end() && entry->first < stretch.begin + stretch.bytes; ++entry) {
      const mapped_run& run = entry->second;
      if (run.bytes > bytes) continue;
      for (std::size_t p = 0; p < pieces.size(); ++p) {
        if (pieces[p].bytes - (*filled)[p] < run.bytes) continue;
        moving.push_back({.source = run,
                          .target = pieces[p].begin + (*filled)[p],
                          .moves = true,
                          .stays_mapped = owner != idle_owner});
        (*filled)[p] += run.bytes;
        bytes -= run.bytes;
        break;
      }
    }
    if (bytes == 0) break;
  }
  std::ranges::sort(moving, {}, [](const remap_batch::run& run) { return run.source.begin; });
  step->runs.insert(step->runs.end(), moving.begin(), moving.end());
  return most - bytes;
}

page_manager::verdict page_manager::plan(const page_place& place, std::uint64_t bytes, const paging_limits& limits,
                                         remap_batch* step) const {
  const std::uint64_t page = page_bytes();
  std::uint64_t mapped = heap_.totals().segment_bytes;
  for (const vacating_run& each : vacating_) mapped += each.run.bytes;
  const std::uint64_t ceiling = most_mapped_pages * page > mapped ? most_mapped_pages * page - mapped : 0;
  std::uint64_t room = round_down(std::min(limits.room_bytes, ceiling), page);
  const page_request& ask = limits.policy;
  const std::uint64_t run_bytes = std::max(round_down(std::min(ask.run_bytes, limits.run_bytes), page), page);
  const std::uint64_t fresh = std::min(room, round_down(ask.make_bytes, page));

  step->pieces = missing_pieces(heap_, place, bytes, page);
  std::vector<std::uint64_t> filled(step->pieces.size());
  const page_span keep = pages_of(place.begin, bytes, page);
  const bool moves = ask.moves && limits.unmap;
  std::uint64_t make = place.missing_bytes;
  if (moves && make > fresh) make -= move_runs(idle_owner, keep, make - fresh, &filled, step);
  if (make > fresh && limits.poll) return verdict::poll_first;
  const owner_id owner = moves && make > fresh ? step->owner : idle_owner;
  step->owner = idle_owner;
  if (owner != idle_owner) {
    const std::uint64_t pending = move_runs(owner, keep, std::min(make - fresh, ceiling), &filled, step);
    make -= pending;
    room = std::min(room, ceiling - pending);
    if (pending != 0) step->owner = owner;
  }
  if (limits.give_back && limits.unmap && (make > room || (make > fresh && make - fresh > ask.over_bytes))) {
    step->new_bytes = make - fresh;
    return verdict::give_back_first;
  }
  if (make > room) return verdict::impossible;
  if (fresh > place.missing_bytes && limits.give_back) make += plan_ahead(fresh - place.missing_bytes, step);
  // Other blocks will lie in the pages made ahead, and in the request's last page if it ends within that. In runs of
  // their own, these do not keep the request's other pages from moving. The last page stays with the others where the
  // policy says so, and where it makes less than is missing, so that runs are short.
  const bool last_apart = ask.moves && ask.end_apart && fresh >= place.missing_bytes;
  const address shared_begin = last_apart ? round_down(place.begin + bytes, page) : keep.end;
  for (std::size_t p = 0; p < step->pieces.size(); ++p) {
    const address begin = step->pieces[p].begin + filled[p];
    const address end = step->pieces[p].begin + step->pieces[p].bytes;
    const bool one_page = std::min(end, keep.end) - begin <= page;
    const address shared = ask.moves && one_page ? begin : std::clamp(shared_begin, begin, end);
    add_new(*step, begin, shared - begin, run_bytes, page);
    add_new(*step, shared, end - shared, run_bytes, page);
  }
  step->new_bytes = make;
  return verdict::ready;
}

// Extends the last piece by up to `bytes` of the unbacked addresses after it. Returns the bytes added.
std::uint64_t page_manager::plan_ahead(std::uint64_t bytes, remap_batch* step) const {
  unbacked_piece& last = step->pieces.back();
  const block& b = heap_.at(unbacked_at(last.begin));
  const std::uint64_t end = last.begin + last.bytes;
  const std::uint64_t more = std::min(bytes, b.begin + b.bytes - end);
  last.bytes += more;
  return more;
}

block_index page_manager::unbacked_at(address target) const noexcept {
  block_index i = heap_.unbacked().first();
  while (!holds(heap_.at(i), target)) i = heap_.at(i).in_index.newer;
  return i;
}

// Returns the block that contains `target` and is idle or free for `owner`, or no_block.
block_index page_manager::free_at(address target, owner_id owner) const noexcept {
  for (const owner_id each : {idle_owner, owner}) {
    for (block_index i = heap_.free_blocks().oldest(each); i != no_block; i = heap_.at(i).in_index.newer) {
      if (holds(heap_.at(i), target)) return i;
    }
  }
  return no_block;
}

// Removes an idle stretch from the page map, and makes it unbacked in the heap. The stretch is still mapped.
void page_manager::take(address begin, std::uint64_t bytes) {
  heap_.decommit(heap_.free_blocks().covering(idle_owner, begin, bytes), begin, bytes);
  in_transit_bytes_ += bytes;
  map_.erase(begin, bytes);
}

// The same for a run that stays mapped: its addresses are vacating in the heap.
void page_manager::vacate(const mapped_run& run, owner_id owner) {
  heap_.decommit(heap_.free_blocks().covering(owner, run.begin, run.bytes), run.begin, run.bytes,
                 block_state::vacating);
  in_transit_bytes_ += run.bytes;
  map_.erase(run.begin, run.bytes);
}

void page_manager::begin(const remap_batch& step) {
  const auto runs = static_cast<std::uint32_t>(step.runs.size());
  map_.make_room(runs);
  if (!step.may_unmap) stranded_.reserve(stranded_.size() + runs);
  if (vacating_.capacity() < vacating_.size() + runs) vacating_.reserve(2 * vacating_.capacity() + runs);
  heap_.make_room_for_blocks(4 * runs);  // per run: two at its source, two at its target
  for (std::size_t k = 0; k < step.runs.size() && step.runs[k].moves;) {
    if (step.runs[k].stays_mapped) {
      vacate(step.runs[k++].source, step.owner);
      continue;
    }
    const address begin = step.runs[k].source.begin;
    address end = begin;
    const block& source = heap_.at(heap_.free_blocks().covering(idle_owner, begin, step.runs[k].source.bytes));
    const address block_end = source.begin + source.bytes;
    for (; k < step.runs.size() && step.runs[k].moves && step.runs[k].source.begin == end && end < block_end; ++k) {
      end += step.runs[k].source.bytes;
    }
    take(begin, end - begin);
  }
  heap_.set_blocks_aside(2 * runs);
}

page_manager::finished page_manager::finish(const remap_batch& step, std::uint64_t epoch) {
  heap_.set_blocks_aside(0);
  finished done;
  for (const remap_batch::run& r : step.runs) {
    const std::uint64_t bytes = r.source.bytes;
    const owner_id owner = r.stays_mapped ? step.owner : idle_owner;
    const std::uint64_t freed = r.stays_mapped ? epoch : 0;
    if (r.stays_mapped && r.state != remap_batch::outcome::lost) {
      ++done.freed_runs;
      done.freed_bytes += bytes;
    }
    switch (r.state) {
      case remap_batch::outcome::arrived:
        map_.insert({r.target, bytes, r.source.pages});
        (r.moves ? done.remapped_pages : done.mapped_pages) += bytes / page_bytes();
        heap_.commit(unbacked_at(r.target), r.target, bytes, owner, freed);
        if (!r.moves) done.new_bytes += bytes;
        if (r.stays_mapped) {
          const segment_index segment = heap_.at(unbacked_at(r.source.begin)).segment;
          vacating_.push_back({r.source, segment, owner, step.epoch});
          ++done.vacating_runs;
        }
        break;
      case remap_batch::outcome::untouched:
        if (!r.moves) continue;
        map_.insert(r.source);
        heap_.commit(unbacked_at(r.source.begin), r.source.begin, bytes, owner, freed);
        break;
      case remap_batch::outcome::destroyed:
        if (r.moves) done.gone_bytes += bytes;
        break;
      case remap_batch::outcome::stranded:
        stranded_.push_back({r.target, bytes, r.source.pages});
        [[fallthrough]];
      case remap_batch::outcome::lost:
        if (r.moves) continue;  // `begin` counted its bytes as in transit already
        in_transit_bytes_ += bytes;
        done.new_bytes += bytes;
        continue;
    }
    if (r.moves) in_transit_bytes_ -= bytes;
  }
  map_.make_room(0);
  return done;
}

// A search may have merged idle memory of the place into a block of `owner` (`absorb_idle`), so accept both.
block_index page_manager::carve(const page_place& place, std::uint64_t bytes, owner_id owner, address within) {
  block_index first = free_at(within, owner);
  if (first == no_block) return no_block;
  while (heap_.at(first).begin > place.begin) {
    first = heap_.at(first).prev;
    if (heap_.at(first).state != block_state::free) return no_block;
  }
  address reached = place.begin;
  for (block_index i = first; i != no_block && reached < place.begin + bytes; i = heap_.at(i).next) {
    const block& b = heap_.at(i);
    if (b.state != block_state::free || (b.owner != owner && b.owner != idle_owner)) return no_block;
    reached = b.begin + b.bytes;
  }
  return reached < place.begin + bytes ? no_block : heap_.carve_at(first, place.begin, bytes, owner);
}

std::vector<mapped_run> page_manager::take_longest_idle(std::uint64_t bytes, page_span keep) {
  const std::vector<free_stretch> idle = map_.stretches(heap_, idle_owner, unfit(keep));
  const auto longest = std::ranges::max_element(idle, {}, &free_stretch::bytes);
  if (longest == idle.end()) return {};
  const address end = longest->begin + longest->bytes;
  address begin = end;
  std::vector<mapped_run> going;
  for (auto entry = map_.runs().lower_bound(end); begin != longest->begin && end - begin < bytes;) {
    begin = (--entry)->first;
    going.push_back(entry->second);
  }
  std::ranges::reverse(going);
  map_.make_room(going.size());  // `finish` puts runs back that the driver does not unmap
  heap_.make_room_for_blocks(4);
  take(begin, end - begin);
  heap_.set_blocks_aside(2);
  return going;
}

void page_manager::finish(std::span<const mapped_run> going, const returned_runs& done) {
  heap_.set_blocks_aside(0);
  const address begin = going.front().begin;
  const std::uint64_t bytes = going.back().begin + going.back().bytes - begin;
  in_transit_bytes_ -= done.unmapped ? done.destroyed : bytes;
  if (!done.unmapped) {
    for (const mapped_run& run : going) map_.insert(run);
    heap_.commit(unbacked_at(begin), begin, bytes);
  }
  map_.make_room(0);
}

// A run that the driver cannot unmap stays lost, with its addresses.
void page_manager::finish_stranded(const returned_runs& done) noexcept {
  stranded_.pop_back();
  in_transit_bytes_ -= done.destroyed;
}

void page_manager::finish_vacating(std::size_t first, std::size_t count) noexcept {
  const auto begin = vacating_.begin() + static_cast<std::ptrdiff_t>(first);
  const auto end = begin + static_cast<std::ptrdiff_t>(count);
  for (auto each = begin; each != end; ++each) {
    heap_.decommit(unbacked_at(each->run.begin), each->run.begin, each->run.bytes);
  }
  vacating_.erase(begin, end);
}

// Synchronizes the device first, because an unmap does not wait for running work, as cudaFree does.
void page_manager::return_everything() {
  for (const mapped_run& run : stranded_) static_cast<void>(return_runs(device_, {&run, 1}));
  if (map_.runs().empty() && vacating_.empty()) return;
  if (const status done = device_.synchronize(); !done) {
    log_if_possible([&] { return fmt::format("pool {}: its pages stay with the driver: {}", name_, done.message()); });
    return;
  }
  status why;
  for (const vacating_run& each : vacating_) {
    if (status unmapped = device_.unmap(each.run.begin, each.run.bytes); why && !unmapped) why = std::move(unmapped);
  }
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

status page_manager::check() const {
  const auto broken = [this](std::string_view problem, std::uint64_t first, std::uint64_t second) {
    return status{errc::corrupt, fmt::format("pool {}: {}: {:#x} and {:#x}", name_, problem, first, second)};
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
  for (block_index i = heap_.unbacked().first(); i != no_block; i = heap_.at(i).in_index.newer) {
    const block& b = heap_.at(i);
    if (b.begin % page != 0 || b.bytes % page != 0) return broken("unbacked, but not whole pages", b.begin, b.bytes);
    if (map_.touches(b.begin, b.bytes)) return broken("memory behind an unbacked block", b.begin, b.bytes);
  }
  for (const vacating_run& each : vacating_) {
    const block& b = heap_.at(unbacked_at(each.run.begin));
    if (b.state != block_state::vacating || b.begin != each.run.begin || b.bytes != each.run.bytes)
      return broken("addresses that a run left, but that are not vacating", b.begin, b.bytes);
  }
  return {};
}

}  // namespace gpumem
