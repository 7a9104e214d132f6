// Frees that no bin took, and what becomes of them.
//
// A free that finds no bin to go to is not worth the lock: nobody can tell when the heap has the block, as long as it
// has it before it is asked for another one. So such blocks wait in their thread's cache, and are settled, each as a
// free under the lock would have been, before that thread's next request is served by the heap, before anybody's would
// take more from the device, and before the statistics are read; or when too many wait. To that thread what is free is
// the same then, and so are all places. Another thread's places are chosen without them, so once there is one, no more
// than a 128th of the pool may wait in each cache.
//
// It also says what is asked for next: a block of that very size is kept on condition (cache_limits.cpp) and no other.
#include <algorithm>
#include <new>

#include "pool_hit.hpp"

namespace gpumem {

// A block of that stream's, which no bin took; false where it may not wait either. The thread is inside its cache, and
// leaves it. Not inline: the end of the paths without the lock, which then need no frame.
[[gnu::noinline]] bool pool::defer(thread_cache& mine, stream_cache& s, address at, const release& stated) noexcept {
  stream_cache::deferred_frees& waiting = s.deferred();
  std::uint64_t bytes = 0;
  bool taken = false;
  // What is kept on condition would not be had again if the heap had this one, so that goes by the lock.
  if (waiting.count < stream_cache::deferred_frees::most && !mine.figures.on_condition) {
    const claim_table::sight seen = claims_.find(at);
    bytes = seen.word().bytes();
    if (seen.word().tag() == claim_word::plain_tag_of(s.owner()) && mine.figures.may_defer(bytes)) {
      taken = mine.alone() ? put_into<true>(mine, nullptr, seen, at, stated)
                           : put_into<false>(mine, nullptr, seen, at, stated);
    }
    if (taken) {
      waiting.held[waiting.count] = seen.at;
      ++waiting.count;
      ++mine.figures.deferred;
      mine.figures.deferred_bytes += bytes;
    }
  }
  mine.leave();
  return taken;
}

// A block of the latest stream of the cache that the thread is inside of. What a free knows is looked up anew, so that
// a hit need not keep it: two instructions and a register.
[[gnu::noinline]] bool pool::defer_of_latest(address at, const release& stated) noexcept {
  const latest_cache& inside = latest_cache_of_thread;
  return inside.of->defer(*inside.cache, inside.cache->latest(), at, stated);
}

// Those of one stream, the latest of `wanted` units last: they are the caller's, and in no place.
pool::deferred_blocks pool::take_deferred(thread_cache& c, stream_cache& s, std::uint64_t wanted) noexcept {
  stream_cache::deferred_frees& waiting = s.deferred();
  deferred_blocks out;
  out.count = waiting.count;
  std::uint64_t bytes = 0;
  std::uint32_t last = waiting.count;
  for (std::uint32_t k = 0; k < waiting.count; ++k) {
    const claim_word w = claims_[waiting.held[k]].read();
    out.held[k] = waiting.held[k];
    bytes += w.bytes();
    if (w.units() == wanted) last = k;
  }
  if (last != out.count) {
    out.last_is_wanted = true;
    std::rotate(out.held.begin() + last, out.held.begin() + last + 1, out.held.begin() + out.count);
  }
  waiting.count = 0;
  c.figures.deferred -= out.count;
  c.figures.deferred_bytes -= bytes;
  c.figures.emptied += out.count;
  c.figures.held_bytes -= bytes;
  in_caches_bytes_ -= bytes;
  return out;
}

// From the thread's next free on that stream on, such a block waits. Not where another stream would have to go for it,
// nor where the host is short: then frees go on by the lock.
[[gnu::cold]] void pool::let_wait(thread_cache& mine, owner_id o) noexcept {
  if (mine.of_owner(o) != nullptr || mine.full()) return;
  try {
    static_cast<void>(stream_cache_for(mine, o));
  } catch (const std::bad_alloc&) {
    return;
  }
}

// Of one stream. What is asked for next comes last: the heap is then as the request will find it.
[[gnu::noinline, gnu::flatten]] void pool::settle(thread_cache& c, stream_cache& s, std::uint64_t wanted) {
  const deferred_blocks going = take_deferred(c, s, wanted);
  for (std::uint32_t k = 0; k < going.count; ++k) {
    look_after(c);
    const bool is_wanted = going.last_is_wanted && k + 1 == going.count;
    if (!keep(c, going.held[k], s.owner(), is_wanted)) to_heap(going.held[k], s.owner());
  }
}

// All of that cache, which is the thread's own or claimed; `w`: what its thread asks for next, if anything.
void pool::settle(thread_cache& c, const want* w) {
  stream_cache* const last = w != nullptr ? c.of_owner(w->owner) : nullptr;
  const std::uint32_t of_last = last != nullptr ? last->deferred().count : 0;
  if (c.figures.deferred != of_last) settle_but(c, last);
  if (of_last != 0) settle(c, *last, w->bytes / block_granularity);
}

[[gnu::noinline]] void pool::settle_but(thread_cache& c, const stream_cache* last) {
  for (owner_id o = 0; o < c.owners(); ++o) {
    stream_cache* const s = c.of_owner(o);
    if (s != nullptr && s != last && s->deferred().count != 0) settle(c, *s, 0);
  }
}

// Every thread's; false where nothing waited.
[[gnu::noinline, gnu::cold]] bool pool::settle_all() {
  const thread_caches::claim all{caches_};
  return settle_claimed();
}

// Requires that every cache is claimed.
bool pool::settle_claimed() {
  bool any = false;
  for (const auto& c : caches_.all()) {
    any = any || c->figures.deferred != 0;
    fold(*c);
    settle(*c, nullptr);
  }
  return any;
}

}  // namespace gpumem
