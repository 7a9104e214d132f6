// Where a paged pool that moves pages puts a large request, by what is expected to come next.
//
// A pool whose policy makes pages one by one (`page_rules::looks_ahead`), and that moved one lately or placed a block
// otherwise than usually, plays what it expects through on a sketch of itself, for the place that it would take and for
// each other one, and takes the one after which least moves (page_rehearsal.hpp, large_requests.hpp). That takes some
// tens of microseconds under the lock, and where idle pages are short a wait for fences, for requests each of which may
// else move pages at some hundred microseconds a page.
#include <algorithm>
#include <new>

#include "bits.hpp"
#include "page_rehearsal.hpp"
#include "pool.hpp"

namespace gpumem {
namespace {

/// Of large requests and frees: after so many in which no page moved, and none was placed otherwise than usually, the
/// pool is taken to be at rest.
constexpr large_requests::number at_rest_after = 1000;
/// Steps that are looked ahead.
constexpr std::uint32_t most_steps = 32;
/// What a decision may cost: blocks of the heap, extents of the sketch, and looks at these, of some nanoseconds each.
constexpr std::uint64_t most_blocks = 8192;
constexpr std::size_t most_extents = 512;
constexpr std::uint64_t most_looks = 200'000;

}  // namespace

bool pool::looks_ahead(const want& w) const noexcept {
  return w.asked != 0 && last_stirred_ != 0 && large_.latest() - last_stirred_ <= at_rest_after &&
         w.alignment == block_granularity && !w.capturing && streams_.captures() == 0 &&
         heap_.totals().live_blocks + heap_.totals().free_blocks <= most_blocks;
}

// Whose free blocks are free for `o` now, or, with `all`, will be sooner or later: not those of a graph that may run.
std::vector<bool> pool::owners_that_serve(owner_id o, bool all) const {
  std::vector<bool> serve(streams_.end());
  for (owner_id each = 0; each < streams_.end(); ++each) {
    const bool later = each != idle_owner && streams_[each].in_use && (!streams_[each].is_graph || streams_[each].gone);
    serve[each] = each == o || each == idle_owner || (all && later);
  }
  return serve;
}

// None where `usual` is as good as any. With `at_once`, a place that no fence stands before. The host being short of
// memory is no reason to fail.
std::optional<page_place> pool::better_place(const want& w, address usual, bool at_once) {
  try {
    const std::vector<expected_step> expected = large_.expected_after(w.asked, most_steps);
    if (expected.empty()) return std::nullopt;
    const std::uint64_t page = device_.info().page_bytes;
    const page_sketch soon{heap_, w.klass, owners_that_serve(w.owner, true), page, most_extents};
    const page_sketch now{heap_, w.klass, owners_that_serve(w.owner, false), page, most_extents};
    if (soon.size() > most_extents || now.size() > most_extents) return std::nullopt;
    const page_sketch& from = at_once ? now : soon;
    std::vector<std::uint64_t> places = from.places(w.bytes);
    for (const std::uint64_t begin : large_.earlier_places(w.asked)) {
      if (from.open(begin, w.bytes)) places.push_back(begin);
    }
    pool_view seen = view();
    const std::uint64_t most = seen.reserved_bytes + budget_.left();
    const page_supply supply{
        .live_bytes = seen.live_bytes, .peak_live_bytes = seen.peak_live_bytes, .reserved_bytes = seen.reserved_bytes};
    const may_make make = [&](const page_supply& then, std::uint64_t need, std::uint64_t missing) {
      seen.live_bytes = then.live_bytes;
      seen.peak_live_bytes = then.peak_live_bytes;
      seen.reserved_bytes = then.reserved_bytes;
      const std::uint64_t left = most > then.reserved_bytes ? most - then.reserved_bytes : 0;
      return round_down(std::min(policy_->page_in(seen, need, missing).make_bytes, left), page);
    };
    const std::optional<std::uint64_t> begin =
        gpumem::better_place(soon, places, usual, w.bytes, expected, supply, make, most_looks);
    if (!begin) return std::nullopt;
    return page_place{
        .begin = *begin, .first = heap_.containing(*begin), .missing_bytes = soon.missing(*begin, w.bytes)};
  } catch (const std::bad_alloc&) {
    return std::nullopt;
  }
}

// As `search`; but where another free place lets less move, there, and where even one that lacks pages does, with
// these.
block_index pool::search_large(guard& lock, want& w) {
  try {
    w.asked = large_.requested(w.bytes);
  } catch (const std::bad_alloc&) {
    return search(w);
  }
  for (bool may_wait = true; looks_ahead(w) && !growing_; may_wait = false) {
    if (!streams_.single()) heap_.absorb_idle(w.owner);
    const block_index usual = heap_.lowest_fit(w.klass, w.owner, w.bytes, w.alignment);
    if (usual == no_block) return no_block;
    const std::optional<page_place> at = better_place(w, heap_.at(usual).begin, true);
    if (!at) break;
    if (at->missing_bytes == 0) {
      note_stirred();
      return heap_.carve_at(at->first, at->begin, w.bytes, w.owner);
    }
    page_step step;
    const page_plan plan = plan_pages(w, *at, {}, {}, &step);
    if (plan == page_plan::wait_first && may_wait && wait_for_fences(lock)) {  // with what is idle then, look again
      poll();
      continue;
    }
    if (plan != page_plan::ready) break;
    growing_ = true;
    const block_index i = page_in_at(lock, w, *at, step);
    return_ticket();
    if (i != no_block) return i;
    break;
  }
  return search(w);
}

// Requires the ticket. True where the request was placed, as `w.placed` says; else nothing has changed but that some
// fences may be done.
bool pool::page_in_ahead(guard& lock, want& w) {
  for (bool may_wait = true; looks_ahead(w); may_wait = false) {
    const std::optional<page_place> usual =
        cheapest_place(heap_, w.klass, w.owner, w.bytes, w.alignment, device_.info().page_bytes);
    if (!usual) return false;
    const std::optional<page_place> at = better_place(w, usual->begin, !may_wait);
    if (!at) return false;
    page_step step;
    page_plan plan = page_plan::ready;
    if (!free_for(w, *at)) {
      plan = page_plan::wait_first;
    } else if (at->missing_bytes == 0) {
      note_stirred();
      w.placed = heap_.carve_at(at->first, at->begin, w.bytes, w.owner);
      return true;
    } else {
      plan = plan_pages(w, *at, {}, {}, &step);
    }
    if (plan == page_plan::wait_first && may_wait && wait_for_fences(lock)) {
      poll();
      continue;
    }
    if (plan != page_plan::ready) return false;
    w.placed = page_in_at(lock, w, *at, step);
    return w.placed != no_block;
  }
  return false;
}

// True where nothing of it is anybody else's.
bool pool::free_for(const want& w, const page_place& at) const {
  for (block_index i = at.first; i != no_block && heap_.at(i).begin < at.begin + w.bytes; i = heap_.at(i).above) {
    const block& b = heap_.at(i);
    const bool mine = b.state == block_state::free && (b.owner == w.owner || b.owner == idle_owner);
    if (b.state != block_state::hollow && !mine) return false;
  }
  return true;
}

// There, with what is missing. Requires the ticket. None where the device fails, which ends looking ahead until pages
// move again, or where another thread took part of the place meanwhile.
block_index pool::page_in_at(guard& lock, const want& w, const page_place& at, page_step& step) {
  if (!budget_.reserve(step.new_bytes)) return no_block;
  if (carry(lock, step, step.new_bytes).ok()) {
    note_stirred();
    return carve_place(w, at, step.pieces.front().begin);
  }
  last_stirred_ = 0;
  return no_block;
}

void pool::note_large_place(const want& w, address at) noexcept {
  try {
    large_.placed(w.asked, at);
  } catch (const std::bad_alloc&) {  // its free will not be noted, either
  }
}

[[gnu::cold]] void pool::note_large_free(address at) noexcept { large_.freed(at); }

}  // namespace gpumem
