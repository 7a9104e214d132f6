// How a pool acts on what lookahead names: it waits for fences, moves pages, and places the request there.
//
// Which place is better is placement/lookahead's; this is what has to be done for it under the pool's lock, and whether
// a request may be looked at: not while a capture is under way, and not with an alignment of its own.
#include <algorithm>
#include <new>

#include "bits.hpp"
#include "pool.hpp"

namespace gpumem {

bool pool::looks_ahead(const want& w) const noexcept {
  return w.alignment == block_granularity && !w.capturing && streams_.captures() == 0 &&
         lookahead_.is_worth(w.asked, heap_);
}

// Whose free blocks are free for `o` now, or, with `all`, will be sooner or later: not those of a graph that may run.
std::vector<bool> pool::owners_that_serve(owner_id o, bool all) const {
  std::vector<bool> serve(streams_.end());
  for (owner_id each = 0; each < streams_.end(); ++each) {
    serve[each] = each == o || each == idle_owner || (all && streams_.serves_others(each));
  }
  return serve;
}

// None where `usual` is as good as any, or the host has no memory to look.
std::optional<page_place> pool::better_place(const want& w, address usual, bool at_once) {
  const std::uint64_t page = device_.info().page_bytes;
  pool_view seen = view();
  const std::uint64_t most = seen.reserved_bytes + budget_.left();
  try {
    const lookahead::pool_now now{
        .page_bytes = page,
        .free_now = owners_that_serve(w.owner, false),
        .free_soon = owners_that_serve(w.owner, true),
        .supply = {.live_bytes = seen.live_bytes,
                   .peak_live_bytes = seen.peak_live_bytes,
                   .reserved_bytes = seen.reserved_bytes},
        .make = [&](const page_supply& then, std::uint64_t need, std::uint64_t missing) GPUMEM_REQUIRES(mutex_) {
          seen.live_bytes = then.live_bytes;
          seen.peak_live_bytes = then.peak_live_bytes;
          seen.reserved_bytes = then.reserved_bytes;
          const std::uint64_t left = most > then.reserved_bytes ? most - then.reserved_bytes : 0;
          return round_down(std::min(policy_.page_in(seen, need, missing).make_bytes, left), page);
        }};
    return lookahead_.better_place(heap_, placement_of(w), w.asked, usual, now, at_once);
  } catch (const std::bad_alloc&) {
    return std::nullopt;
  }
}

// As `search`; but where another free place lets less move, there, and where even one that lacks pages does, with
// these.
block_index pool::search_large(guard& lock, want& w) {
  w.asked = lookahead_.requested(w.bytes);
  for (bool may_wait = true; looks_ahead(w) && !growth_.taken(); may_wait = false) {
    if (!streams_.single()) heap_.absorb_idle(w.owner);
    const block_index usual = heap_.lowest_fit(w.klass, w.owner, w.bytes, w.alignment);
    if (usual == no_block) return no_block;
    const std::optional<page_place> at = better_place(w, heap_.at(usual).begin, true);
    if (!at) break;
    if (at->missing_bytes == 0) {
      lookahead_.wake();
      return heap_.carve_at(at->first, at->begin, w.bytes, w.owner);
    }
    page_step step;
    const page_plan plan = plan_pages(w, *at, {}, {}, &step);
    if (plan == page_plan::wait_first && may_wait && wait_for_fences(lock)) {  // with what is idle then, look again
      poll(lock);
      continue;
    }
    if (plan != page_plan::ready) break;
    const growth_ticket ticket{growth_};
    if (const block_index i = page_in_at(lock, w, *at, step); i != no_block) return i;
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
      lookahead_.wake();
      w.placed = heap_.carve_at(at->first, at->begin, w.bytes, w.owner);
      return true;
    } else {
      plan = plan_pages(w, *at, {}, {}, &step);
    }
    if (plan == page_plan::wait_first && may_wait && wait_for_fences(lock)) {
      poll(lock);
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
  reservation reserved{budget_, step.new_bytes};
  if (carry(lock, step, &reserved).ok()) {
    lookahead_.wake();
    return carve_place(w, at, step.pieces.front().begin);
  }
  lookahead_.sleep();
  return no_block;
}

}  // namespace gpumem
