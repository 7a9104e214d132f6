// The paths of a pool that take no lock: a hit in the thread's cache, and a free into it.
//
// Inline, so that the allocator's two functions hold the whole of it. Costs: one compare-and-swap in the free (a
// plain store while one thread alone uses the pool), none in the allocation, no call but one for the second pool that a
// thread uses. docs/performance.md counts the instructions.
#pragma once

#include <algorithm>

#include "pool.hpp"

namespace gpumem {

inline address pool::pop(thread_cache& mine, stream_cache::bin& from, std::uint64_t requested) noexcept {
  claim& c = claims_[from.pop()];
  const claim_word w{c.word.load(std::memory_order_relaxed)};
  // Before the word says that the program has it: from then on a second free of it is taken, and the claim another's.
  const address at = c.begin.load(std::memory_order_relaxed);
  c.write(w.handed_out(requested));
  cache_figures& f = mine.figures;
  f.requested_bytes += requested;
  f.weighed_bytes -= bin_places::weight(w.units());
  f.handed_bytes += static_cast<std::int64_t>(w.bytes());
  f.most_handed_bytes = std::max(f.most_handed_bytes, f.handed_bytes);
  return at;
}

inline address pool::hit_in(thread_cache& mine, stream_cache& s, std::uint64_t requested) noexcept {
  stream_cache::bin* const bin =
      s.find(static_cast<std::uint32_t>((requested + block_granularity - 1) / block_granularity));
  return bin != nullptr && bin->count != 0 ? pop(mine, *bin, requested) : 0;
}

inline address pool::hit(thread_cache& mine, stream_ref of, std::uint64_t requested) noexcept {
  if (device_.condition() != device_condition::usable || !mine.enter()) [[unlikely]]
    return 0;
  stream_cache* const s = mine.of_handle(of.handle);
  const address at = s != nullptr ? hit_in(mine, *s, requested) : 0;
  mine.leave();
  return at;
}

// `only`: the cache of the stream that the caller named, for a block of that one's; null where none was named.
// Always inline, so that a free which states nothing has no test left of what it may state.
[[gnu::always_inline]] inline bool pool::take_back_in(thread_cache& mine, address at, const release& stated,
                                                      const stream_cache* only) noexcept {
  const auto [i, w] = claims_.find(at);
  if (!w.plainly_live()) [[unlikely]]
    return false;
  stream_cache* const s = mine.of_owner(w.owner());
  if (s == nullptr || (only != nullptr && only != s)) [[unlikely]]
    return false;
  if (stated.bytes && *stated.bytes != w.requested_bytes()) [[unlikely]]
    return false;
  stream_cache::bin* const bin = s->find(static_cast<std::uint32_t>(w.units()));
  if (bin == nullptr || bin->count >= bin->most) return false;
  cache_figures& f = mine.figures;
  const std::uint64_t weight = bin_places::weight(w.units());
  if (weight != 0 && f.weighed_bytes + weight > f.most_weighed_bytes) return false;
  claim& c = claims_[i];
  if (mine.alone()) {
    c.write(w.cached());
  } else {
    if (!c.change(w, w.cached())) [[unlikely]]
      return false;
    if (c.begin.load(std::memory_order_relaxed) != at) [[unlikely]] {  // a second free, of what was here before
      c.write(w);
      return false;
    }
  }
  bin->push(i);
  ++f.frees;
  f.requested_bytes -= w.requested_bytes();
  if (weight != 0) f.weighed_bytes += weight;
  f.handed_bytes -= static_cast<std::int64_t>(w.bytes());
  return true;
}

[[gnu::always_inline]] inline bool pool::take_back(thread_cache& mine, address at, const release& stated) noexcept {
  if (device_.condition() != device_condition::usable || !mine.enter()) [[unlikely]]
    return false;
  const stream_cache* const only = stated.stream ? mine.of_handle(stated.stream->handle) : nullptr;
  const bool taken = (!stated.stream || only != nullptr) && take_back_in(mine, at, stated, only);
  mine.leave();
  return taken;
}

}  // namespace gpumem
