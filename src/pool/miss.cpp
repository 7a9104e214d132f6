// A miss as it mostly is: a request of an ordinary stream, which the heap serves from what is free.
//
// What `pool::allocate` would do, without what it asks before: a cache that served this stream by its handle just now
// says which slot is the stream's, that its blocks are plain, and that no capture had begun.
#include "bits.hpp"
#include "pool_hit.hpp"

namespace gpumem {

[[gnu::flatten]] status pool::miss(thread_cache& mine, const request& r, std::uint64_t rounded, address* at,
                                   oom_slot* refusal) {
  if (follower_ != nullptr || is_large(rounded)) [[unlikely]]
    return allocate(r, rounded, at, refusal);
  if (rounded <= bin_places::small_units * block_granularity) {
    if ((*at = hit_beside(streams_.known_key(r.stream), r.bytes)) != 0) return {};
  }
  guard lock = enter();
  stream_cache* const s = mine.of_handle(r.stream.handle);
  if (s == nullptr || streams_.captures() != 0) [[unlikely]] {  // since `hit` looked
    lock.unlock();
    return allocate(r, rounded, at, refusal);
  }
  fold(mine);
  if (mine.figures.deferred != 0) settle_all_of(mine, s, rounded / block_granularity);
  const owner_id o = s->owner();
  if ((*at = refill(mine, o, rounded, r.bytes)) != 0) return {};
  look_after(mine);
  const block_index i = search(o, classes_ == 1 ? 0 : policy_->segment_class(rounded), rounded, block_granularity);
  if (i == no_block) [[unlikely]]
    return serve_miss(lock, *s, r, rounded, at, refusal);
  note_calm(rounded);
  ++streams_[o].references;
  *at = hand_out(i, o, true, r.bytes);
  return {};
}

// What nothing free is large enough for.
[[gnu::cold, gnu::noinline]] status pool::serve_miss(guard& lock, const stream_cache& s, const request& r,
                                                     std::uint64_t rounded, address* at, oom_slot* refusal) {
  want w;
  w.owner = s.owner();
  w.bytes = rounded;
  w.alignment = block_granularity;
  w.klass = classes_ == 1 ? 0 : policy_->segment_class(rounded);
  w.plain = true;
  return serve(lock, r, w, s.key(), at, refusal);
}

}  // namespace gpumem
