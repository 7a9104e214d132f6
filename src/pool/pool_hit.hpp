// The paths of a pool that take no lock: a hit in the thread's cache, and a free into it.
//
// Inline, so that the allocator's functions (front/hit.cpp) hold the whole of it. Costs: one compare-and-swap in the
// free (a plain store while one thread alone uses the pool), none in the allocation, no call but one for the second
// pool that a thread uses. docs/performance.md counts the instructions.
#pragma once

#include <algorithm>

#include "pool.hpp"

namespace gpumem {

[[gnu::always_inline]] inline address pool::pop(thread_cache& mine, stream_cache::bin& from,
                                                std::uint64_t requested) noexcept {
  claim& c = claims_[from.pop()];
  const claim_word w{c.word.load(std::memory_order_relaxed)};
  // Before the word says that the program has it: from then on a second free of it is taken, and the claim another's.
  const address at = c.begin.load(std::memory_order_relaxed);
  const std::uint64_t bytes = ((requested - 1) | (block_granularity - 1)) + 1;  // as the claim says, but known before
  c.write(w.handed_out(bytes - requested));
  cache_figures& f = mine.figures;
  f.requested_bytes += requested;
  if (bytes > bin_places::small_units * block_granularity) f.weighed_bytes -= bytes;
  f.handed_bytes += static_cast<std::int64_t>(bytes);
  f.most_handed_bytes = std::max(f.most_handed_bytes, f.handed_bytes);
  return at;
}

inline address pool::hit_in(thread_cache& mine, stream_cache& s, std::uint64_t requested) noexcept {
  stream_cache::bin* const bin = s.that_serves((requested - 1) / block_granularity + 1);
  if (bin != nullptr && bin->count != 0) [[likely]]
    return pop(mine, *bin, requested);
  return 0;
}

inline address pool::hit(thread_cache& mine, stream_ref of, std::uint64_t requested) noexcept {
  if (device_.condition() != device_condition::usable || !mine.enter()) [[unlikely]]
    return 0;
  address at = 0;
  if (mine.serves_latest(of.handle)) [[likely]]
    at = hit_in(mine, mine.latest(), requested);
  mine.leave();
  return at;
}

// The program's claim, which said `w`, becomes the cache's; false where another was first.
template <bool alone>
[[gnu::always_inline]] inline bool pool::give_up(claim& c, address at, claim_word w) noexcept {
  if constexpr (alone) {
    c.write(w.cached());
    return true;
  }
  if (!c.change(w, w.cached())) [[unlikely]]
    return false;
  if (c.begin.load(std::memory_order_relaxed) != at) [[unlikely]] {  // a second free, of what was here before
    c.write(w);
    return false;
  }
  return true;
}

// The block of that claim into that bin, which has room; null: the caller puts it elsewhere. Always inline, so that a
// free which states nothing has no test left of what it may state.
template <bool alone>
[[gnu::always_inline]] inline bool pool::put_into(thread_cache& mine, stream_cache::bin* bin,
                                                  const claim_table::sight& seen, address at,
                                                  const release& stated) noexcept {
  const claim_word w = seen.word();
  if (stated.bytes && *stated.bytes != w.requested_bytes()) [[unlikely]]
    return false;
  cache_figures& f = mine.figures;
  std::uint64_t weighed = 0;  // with it; 0: it does not count
  if (bin != nullptr && bin_places::weighs(w.units())) {
    weighed = f.weighed_bytes + w.bytes();
    if (weighed > f.most_weighed_bytes) [[unlikely]]
      return false;
  }
  if (!give_up<alone>(*seen.of, at, w)) [[unlikely]]
    return false;
  if (bin != nullptr) bin->push(seen.at);
  ++f.frees;
  f.requested_bytes -= w.requested_bytes();
  if (weighed != 0) f.weighed_bytes = weighed;  // which no load has to wait for behind the compare-and-swap
  f.handed_bytes -= static_cast<std::int64_t>(w.bytes());
  return true;
}

// Two of a kind, for a thread that is alone and one that is not: which it is is asked once.
template <bool alone>
[[gnu::always_inline]] inline bool pool::take_back_as(thread_cache& mine, address at, const release& stated,
                                                      const stream_cache* only) noexcept {
  if constexpr (!alone) claims_.fetch_to_find(at);
  const claim_table::sight seen = claims_.find(at);
  if (seen.word().tag() != mine.latest_tag()) [[unlikely]]
    return take_back_of_other(mine, at, stated, only);
  if (only != nullptr && only != &mine.latest()) [[unlikely]] {
    mine.leave();
    return false;
  }
  stream_cache::bin* const bin = &mine.latest().at(seen.word().bin());
  if (bin->units != static_cast<std::uint32_t>(seen.word().units())) [[unlikely]] {
    return mine.latest().that_serves(seen.word().units()) == nullptr ? defer_of_latest(at, stated)
                                                                     : take_back_elsewhere(at, stated);
  }
  if (bin->count >= bin->most) [[unlikely]] {
    return bin->count != 0 ? take_back_of_full(mine, *bin, at, stated) : defer_of_latest(at, stated);
  }
  if (!alone && bin->piles_up()) [[unlikely]]
    return take_back_of_run(mine, at, stated, seen.at, seen.bits);
  if (!put_into<alone>(mine, bin, seen, at, stated)) [[unlikely]]
    return defer_of_latest(at, stated);
  mine.leave();
  return true;
}

// `only`: the cache of the stream that the caller named, for a block of that one's; null where none was named. The
// thread is inside its cache, and leaves it.
[[gnu::always_inline]] inline bool pool::take_back_inside(thread_cache& mine, address at, const release& stated,
                                                          const stream_cache* only) noexcept {
  return mine.alone() ? take_back_as<true>(mine, at, stated, only) : take_back_as<false>(mine, at, stated, only);
}

[[gnu::always_inline]] inline bool pool::take_back(thread_cache& mine, address at, const release& stated) noexcept {
  if (device_.condition() != device_condition::usable || !mine.enter()) [[unlikely]]
    return false;
  const stream_cache* const only = stated.stream ? mine.of_handle(stated.stream->handle) : nullptr;
  if (stated.stream && only == nullptr) [[unlikely]] {
    mine.leave();
    return false;
  }
  return take_back_inside(mine, at, stated, only);
}

}  // namespace gpumem
