// A free without the pool's lock: a block into the calling thread's cache.
//
// If this cannot decide (another thread has stopped the cache, the bin is full, something about the block needs the
// lock, a stated size is wrong), nothing changes, and the caller takes the lock. cache_allocate.cpp has the memory
// order of each atomic, and why.
#include "fast_path.hpp"

namespace gpumem {
namespace {

// False if another thread frees the block now, or if this is a second free and the slot has a later block.
inline bool take_from_program(const pointer_map::lookup& seen, owner_word word, address pointer) noexcept {
  if (!seen.slot->change(word, word.cached())) return false;
  if (seen.slot->begin.load(std::memory_order_relaxed) == pointer) return true;
  seen.slot->write(word);
  return false;
}

// Counts a block that the cache has taken in. `requested_bytes` may wrap; sums over all caches are exact modulo 2^64.
inline void note_free(cache_figures& figures, owner_word word) noexcept {
  ++figures.frees;
  figures.requested_bytes -= word.requested_bytes();
  figures.handed_bytes -= static_cast<std::int64_t>(word.bytes());
}

}  // namespace

// Puts the block into the bin of its size in the cache of its own stream. Returns false and changes nothing if the
// caller must take the lock: an unknown or shared block, a stated size or stream that differs, no bin or a full one, or
// the limit on kept bytes. Requires that the thread is inside its cache. `only`: the cache of the stream that the
// caller named; null if none was named. `by_handle`: refuses unless `stated` has the handle of the block's own stream.
inline bool fast_path::free_to_stream(thread_cache& mine, address pointer, const free_args* stated,
                                      const stream_cache* only, bool by_handle) noexcept {
  const pointer_map::lookup seen = pointers_.find(pointer);
  const owner_word w = seen.word();
  if (!w.plainly_live()) return false;
  stream_cache* const s = mine.of_owner(w.owner());
  if (s == nullptr || (only != nullptr && only != s)) return false;
  if (by_handle && s->stream().handle != *stated->stream) return false;
  stream_cache::bin* const bin = s->find(w.units());
  if (bin == nullptr || bin->count >= bin->capacity) return false;
  if (stated != nullptr && stated->bytes && *stated->bytes != w.requested_bytes()) return false;
  cache_figures& f = mine.figures;
  const std::uint64_t limited = f.limited_bytes + bin_index::limited_bytes(w.units());
  if (limited > f.most_limited_bytes && bin_index::is_limited(w.units()) && bin->capacity != stream_cache::alone) {
    return false;
  }
  if (!take_from_program(seen, w, pointer)) return false;
  bin->push(seen.index);
  note_free(f, w);
  f.limited_bytes = limited;
  return true;
}

// No request gets the block before a fence is done, so blocks of any stream may share a batch.
fast_path::deferred fast_path::defer_free(address pointer) noexcept {
  thread_cache* const mine = mine_without_lock();
  if (mine == nullptr || !mine->enter()) return deferred::refused;
  const auto leave = [mine](deferred how) { return mine->leave(), how; };
  const pointer_map::lookup seen = pointers_.find(pointer);
  const owner_word w = seen.word();
  if (!w.plainly_live() || mine->deferred.full()) return leave(deferred::refused);
  if (!take_from_program(seen, w, pointer)) return leave(deferred::refused);
  cache_figures& f = mine->figures;
  note_free(f, w);
  f.deferred_bytes += w.bytes();
  return leave(mine->deferred.push(seen.index, w.bytes()) ? deferred::fence_due : deferred::taken);
}

bool fast_path::attach_fence(fence batch_fence) noexcept {
  thread_cache* const mine = mine_without_lock();
  if (mine == nullptr || !mine->enter()) return false;
  const bool taken = mine->deferred.fenced_by(batch_fence);
  mine->leave();
  return taken;
}

bool fast_path::free(thread_cache& mine, address pointer, const free_args* stated) noexcept {
  if (device_.condition() != device_condition::usable || !mine.enter()) return false;
  const bool of_one = stated != nullptr && stated->stream;
  const stream_cache* const only = of_one ? mine.of_handle(stated->stream->handle) : nullptr;
  const bool taken = (!of_one || only != nullptr) && free_to_stream(mine, pointer, stated, only, false);
  mine.leave();
  return taken;
}

bool fast_path::free_by_key(address pointer, std::optional<std::uint64_t> key, const free_args& stated) noexcept {
  if (device_.condition() != device_condition::usable) return false;
  thread_cache* const mine = mine_without_lock();
  if (mine == nullptr) {
    thread_cache* const noted = mine_noted();
    return noted != nullptr && free_noted(*noted, pointer, &stated, key ? match::key : match::any, key.value_or(0));
  }
  if (!mine->enter()) return false;
  const stream_cache* const only = key ? mine->of_key(*key) : nullptr;
  const bool taken = (!key || only != nullptr) && free_to_stream(*mine, pointer, &stated, only, false);
  mine->leave();
  return taken;
}

bool fast_path::free_by_handle(address pointer, const free_args& stated) noexcept {
  if (device_.condition() != device_condition::usable) return false;
  thread_cache* const mine = mine_without_lock();
  if (mine == nullptr) {
    thread_cache* const noted = mine_noted();
    return noted != nullptr && free_noted(*noted, pointer, &stated, match::any_handle, 0);
  }
  if (!mine->enter()) return false;
  const bool taken = free_to_stream(*mine, pointer, &stated, nullptr, true);
  mine->leave();
  return taken;
}

bool fast_path::free_noted(thread_cache& mine, address pointer, const free_args* stated) noexcept {
  const bool of_one = stated != nullptr && stated->stream;
  return free_noted(mine, pointer, stated, of_one ? match::latest_handle : match::any, 0);
}

// `how` selects the streams whose blocks it takes. Reads the size first: once the cache holds the block, `held` is no
// longer the program's word.
bool fast_path::free_noted(thread_cache& mine, address pointer, const free_args* stated, match how,
                           std::uint64_t key) noexcept {
  if (device_.condition() != device_condition::usable || !mine.enter()) return false;
  const stream_cache* only = nullptr;
  if (how == match::key) only = mine.of_key(key);
  if (how == match::latest_handle) only = mine.of_handle(stated->stream->handle);
  bool taken = mine.events != nullptr && !mine.events->is_full();
  if (only == nullptr && (how == match::key || how == match::latest_handle)) taken = false;
  if (taken) {
    const owner_word held = pointers_.find(pointer).word();
    taken = free_to_stream(mine, pointer, stated, only, how == match::any_handle);
    if (taken) {
      history_->add(*mine.events, event_kind::freed, pointer, held.requested_bytes(),
                    mine.of_owner(held.owner())->stream().handle);
    }
  }
  mine.leave();
  return taken;
}

}  // namespace gpumem
