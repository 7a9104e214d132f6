// An allocation without the pool's lock: a block from the calling thread's cache.
//
// If this cannot decide (another thread has stopped the cache, the bin is empty), nothing changes, and the caller takes
// the lock. The free is in cache_free.cpp. Memory orders of both:
//
// - `inside_` of the cache, then `gate_`: a store, a fence for the compiler, a load. A thread that stops caches sets
//   `gate_` and has the kernel run a fence on every processor before it reads `inside_`, so one of both sees the
//   other's store.
// - `inside_` on leaving: release. The thread that stopped the cache then reads the changes made inside.
// - Owner word, read by `find`: acquire. A later block's word comes with that block's address.
// - Owner word, from the program's to a cache's: compare-and-swap, acquire-release. One of several frees succeeds.
// - Owner word, from a cache's to the program's: release store. Only this thread may change a cached block's word, and
//   a free on any thread reads the size with it.
// - Address of a slot: relaxed. It is read after the word, or while the reader holds the block.
#include <algorithm>

#include "fast_path.hpp"

namespace gpumem {

address fast_path::pop(thread_cache& mine, stream_cache::bin& bin, std::uint64_t requested) noexcept {
  pointer_slot& c = pointers_[bin.pop()];
  const owner_word w = c.read();
  // Read it before the word says `program`: from then on a second free succeeds, and the slot may become another
  // block's.
  const address begin = c.begin.load(std::memory_order_relaxed);
  c.write(w.handed_out(w.bytes() - requested));
  cache_figures& f = mine.figures;
  f.requested_bytes += requested;
  f.limited_bytes -= bin_index::limited_bytes(w.units());
  f.handed_bytes += static_cast<std::int64_t>(w.bytes());
  f.most_handed_bytes = std::max(f.most_handed_bytes, f.handed_bytes);
  return begin;
}

inline address fast_path::try_stream(thread_cache& mine, stream_cache& stream, std::uint64_t requested) noexcept {
  stream_cache::bin* const bin = stream.find((requested - 1) / block_granularity + 1);
  return bin != nullptr && bin->count != 0 ? pop(mine, *bin, requested) : 0;
}

address fast_path::allocate(thread_cache& mine, stream_ref stream, std::uint64_t requested) noexcept {
  if (device_.condition() != device_condition::usable || !mine.enter()) return 0;
  stream_cache* const s = mine.of_handle(stream.handle);
  const address begin = s != nullptr ? try_stream(mine, *s, requested) : 0;
  mine.leave();
  return begin;
}

address fast_path::allocate_by_key(std::uint64_t key, std::uint64_t requested,
                                   std::optional<stream_ref> remember) noexcept {
  if (device_.condition() != device_condition::usable) return 0;
  thread_cache* const mine = mine_without_lock();
  if (mine == nullptr) return allocate_by_key_noted(key, requested, remember);
  if (!mine->enter()) return 0;
  stream_cache* const s = mine->of_key(key);
  if (s != nullptr && remember) mine->remember(remember->handle, *s);
  const address begin = s != nullptr ? try_stream(*mine, *s, requested) : 0;
  mine->leave();
  return begin;
}

// With a history. A thread writes its event before it leaves its cache, so the history is complete when every cache is
// stopped.
address fast_path::allocate_noted(thread_cache& mine, stream_ref stream, std::uint64_t requested) noexcept {
  if (device_.condition() != device_condition::usable || !mine.enter()) return 0;
  stream_cache* const s = mine.of_handle(stream.handle);
  const bool has_room = mine.events != nullptr && !mine.events->is_full();
  const address begin = s != nullptr && has_room ? try_stream(mine, *s, requested) : 0;
  if (begin != 0) history_->add(*mine.events, event_kind::allocated, begin, requested, s->stream().handle);
  mine.leave();
  return begin;
}

address fast_path::allocate_by_key_noted(std::uint64_t key, std::uint64_t requested,
                                         std::optional<stream_ref> remember) noexcept {
  thread_cache* const mine = mine_noted();
  if (mine == nullptr || !mine->enter()) return 0;
  stream_cache* const s = mine->of_key(key);
  if (s != nullptr && remember) mine->remember(remember->handle, *s);
  const bool has_room = mine->events != nullptr && !mine->events->is_full();
  const address begin = s != nullptr && has_room ? try_stream(*mine, *s, requested) : 0;
  if (begin != 0) history_->add(*mine->events, event_kind::allocated, begin, requested, s->stream().handle);
  mine->leave();
  return begin;
}

}  // namespace gpumem
