// Frees that no bin took, and what becomes of them.
//
// A free that finds no bin to go to is not worth the lock: nobody can tell when the heap has the block, as long as it
// has it before it is asked for another one. So such blocks wait in their thread's cache, and are settled, each as a
// free under the lock would have been, before that thread's next request is served by the heap, before anybody's would
// take more from the device, and before the statistics are read; or when too many wait. To that thread what is free is
// the same then, and so are all places. Another thread's places are chosen without them, so while there is one, no more
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
      heap_.fetch(claims_.block_of(seen.at));  // what `settle` begins with
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

// Those of one stream: they are the caller's, and in no place. To be read until the thread's next free.
std::span<claim_index> pool::take_deferred(thread_cache& c, stream_cache& s) noexcept {
  stream_cache::deferred_frees& waiting = s.deferred();
  const std::uint32_t count = waiting.count;
  std::uint64_t bytes = 0;
  for (std::uint32_t k = 0; k < count; ++k) bytes += claims_[waiting.held[k]].read().bytes();
  waiting.count = 0;
  c.figures.deferred -= count;
  c.figures.deferred_bytes -= bytes;
  c.figures.emptied += count;
  c.figures.held_bytes -= bytes;
  in_caches_bytes_ -= bytes;
  return {waiting.held.data(), count};
}

// The latest block of that many units last, if there is one.
[[gnu::noinline]] void pool::put_last(std::span<claim_index> blocks, std::uint64_t units) const noexcept {
  for (std::size_t k = blocks.size(); k-- != 0;) {
    if (claims_[blocks[k]].read().units() != units) continue;
    std::rotate(blocks.begin() + static_cast<std::ptrdiff_t>(k), blocks.begin() + static_cast<std::ptrdiff_t>(k) + 1,
                blocks.end());
    return;
  }
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
  const std::span<claim_index> going = take_deferred(c, s);
  if (going.size() != 1) put_last(going, wanted);
  const owner_id o = s.owner();
  const claim_index last = going.back();
  const bool last_is_wanted = claims_[last].read().units() == wanted;
  for (const claim_index i : going) {
    look_after(c);
    if (!keep(c, i, o, last_is_wanted && i == last)) to_heap(i, o);
  }
}

// All of that cache, which is the thread's own or claimed. Its thread asks for `wanted` units of a stream next, whose
// are in `asks`; null: for nothing that is known.
void pool::settle_all_of(thread_cache& c, stream_cache* asks, std::uint64_t wanted) {
  const std::uint32_t of_asks = asks != nullptr ? asks->deferred().count : 0;
  if (c.figures.deferred != of_asks) settle_but(c, asks);
  if (of_asks != 0) settle(c, *asks, wanted);
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
    settle_all_of(*c, nullptr, 0);
  }
  return any;
}

}  // namespace gpumem
