#include "foresight.hpp"

#include <algorithm>
#include <new>

#include "bits.hpp"

namespace gpumem {

using verdict = paged_backing::verdict;

bool foresight::is_worth(const pending_request& w) const noexcept {
  return w.alignment == block_granularity && !w.capturing && in_.streams.captures() == 0 &&
         in_.ahead.is_worth(w.asked, in_.blocks);
}

// Whose free blocks are free for `o` now, or, with `all`, will be sooner or later: not those of a graph that may run.
std::vector<bool> foresight::owners_that_serve(owner_id o, bool all) const {
  std::vector<bool> serve(in_.streams.end());
  for (owner_id each = 0; each < in_.streams.end(); ++each) {
    serve[each] = each == o || each == idle_owner || (all && in_.streams.serves_others(each));
  }
  return serve;
}

// None where `usual` is as good as any, or the host has no memory to look.
std::optional<page_place> foresight::better_place(const pending_request& w, address usual, bool at_once) {
  const std::uint64_t page = in_.pages.page_bytes();
  pool_view seen = in_.view();
  const std::uint64_t most = seen.reserved_bytes + in_.cap.left();
  try {
    const lookahead::pool_now now{
        .page_bytes = page,
        .free_now = owners_that_serve(w.owner, false),
        .free_soon = owners_that_serve(w.owner, true),
        .supply = {.live_bytes = seen.live_bytes,
                   .peak_live_bytes = seen.peak_live_bytes,
                   .reserved_bytes = seen.reserved_bytes},
        .make = [&](const page_supply& then, std::uint64_t need, std::uint64_t missing) GPUMEM_UNDER_LOCK {
          seen.live_bytes = then.live_bytes;
          seen.peak_live_bytes = then.peak_live_bytes;
          seen.reserved_bytes = then.reserved_bytes;
          const std::uint64_t left = most > then.reserved_bytes ? most - then.reserved_bytes : 0;
          return round_down(std::min(in_.decides.page_in(seen, need, missing).make_bytes, left), page);
        }};
    return in_.ahead.better_place(in_.blocks,
                                  {.owner = w.owner, .klass = w.klass, .bytes = w.bytes, .alignment = w.alignment},
                                  w.asked, usual, now, at_once);
  } catch (const std::bad_alloc&) {
    return std::nullopt;
  }
}

block_index foresight::carve(const pending_request& w, const page_place& at) {
  in_.ahead.wake();
  return in_.blocks.carve_at(at.first, at.begin, w.bytes, w.owner);
}

block_index foresight::search(arena_lock& lock, pending_request& w) {
  w.asked = in_.ahead.requested(w.bytes);
  for (bool may_wait = true; is_worth(w) && !in_.gate.taken(); may_wait = false) {
    if (!in_.streams.single()) in_.blocks.absorb_idle(w.owner);
    const block_index usual = in_.blocks.lowest_fit(w.klass, w.owner, w.bytes, w.alignment);
    if (usual == no_block) return no_block;
    const std::optional<page_place> at = better_place(w, in_.blocks.at(usual).begin, true);
    if (!at) break;
    if (at->missing_bytes == 0) return carve(w, *at);
    page_step step;
    const verdict plan = pager_.plan(w, *at, {}, &step);
    if (plan == verdict::wait_first && may_wait && fences_.wait_for_all(lock)) continue;  // with what is idle then
    if (plan != verdict::ready) break;
    const growth_ticket ticket{in_.gate};
    if (const block_index i = pager_.page_in_at(lock, w, *at, step); i != no_block) return i;
    break;
  }
  return in_.search(w);
}

bool foresight::page_in(arena_lock& lock, pending_request& w) {
  for (bool may_wait = true; is_worth(w); may_wait = false) {
    const std::optional<page_place> usual =
        cheapest_place(in_.blocks, w.klass, w.owner, w.bytes, w.alignment, in_.pages.page_bytes());
    if (!usual) return false;
    const std::optional<page_place> at = better_place(w, usual->begin, !may_wait);
    if (!at) return false;
    page_step step;
    verdict plan = verdict::wait_first;
    if (free_for(w, *at)) {
      if (at->missing_bytes == 0) {
        w.placed = carve(w, *at);
        return true;
      }
      plan = pager_.plan(w, *at, {}, &step);
    }
    if (plan == verdict::wait_first && may_wait && fences_.wait_for_all(lock)) continue;
    if (plan != verdict::ready) return false;
    w.placed = pager_.page_in_at(lock, w, *at, step);
    return w.placed != no_block;
  }
  return false;
}

// True where nothing of it is anybody else's.
bool foresight::free_for(const pending_request& w, const page_place& at) const {
  for (block_index i = at.first; i != no_block && in_.blocks.at(i).begin < at.begin + w.bytes;
       i = in_.blocks.at(i).above) {
    const block& b = in_.blocks.at(i);
    const bool mine = b.state == block_state::free && (b.owner == w.owner || b.owner == idle_owner);
    if (b.state != block_state::unbacked && !mine) return false;
  }
  return true;
}

}  // namespace gpumem
