// A free without the pool's lock: a block into the calling thread's cache.
//
// What this cannot decide (another thread has stopped the cache, the bin is full, something about the block needs the
// lock, a stated size is wrong) changes nothing, goes by the lock, and gets its answer there. cache_allocate.cpp says
// which memory order each atomic has, and why.
#include "block_cache.hpp"

namespace gpumem {
namespace {

// False where another thread frees it at this moment, or the free is a second one, of what was here before.
inline bool take_from_program(const pointer_map::lookup& seen, owner_word w, address at) noexcept {
  if (!seen.of->change(w, w.cached())) return false;
  if (seen.of->begin.load(std::memory_order_relaxed) == at) return true;
  seen.of->write(w);
  return false;
}

inline void note_free(cache_figures& f, owner_word w) noexcept {
  ++f.frees;
  f.requested_bytes -= w.requested_bytes();
  f.handed_bytes -= static_cast<std::int64_t>(w.bytes());
}

}  // namespace

// Requires that the thread is inside its cache. `only`: the cache of the stream that the caller named; null where none
// was named. `by_handle`: `stated` has the handle of the block's own stream, else it is refused.
inline bool block_cache::free_to_stream(thread_cache& mine, address at, const free_args* stated,
                                        const stream_cache* only, bool by_handle) noexcept {
  const pointer_map::lookup seen = pointers_.find(at);
  const owner_word w = seen.word();
  if (!w.plainly_live()) return false;
  stream_cache* const s = mine.of_owner(w.owner());
  if (s == nullptr || (only != nullptr && only != s)) return false;
  if (by_handle && s->stream().handle != *stated->stream) return false;
  stream_cache::bin* const bin = s->find(w.units());
  if (bin == nullptr || bin->count >= bin->most) return false;
  if (stated != nullptr && stated->bytes && *stated->bytes != w.requested_bytes()) return false;
  cache_figures& f = mine.figures;
  const std::uint64_t limited = f.limited_bytes + bin_places::limited_bytes(w.units());
  if (limited > f.most_limited_bytes && bin_places::is_limited(w.units()) && bin->most != stream_cache::alone) {
    return false;
  }
  if (!take_from_program(seen, w, at)) return false;
  bin->push(seen.at);
  note_free(f, w);
  f.limited_bytes = limited;
  return true;
}

// Nobody can have the block before a fence is done, so any stream's will do, and any number of them.
block_cache::aside block_cache::free_aside(address at) noexcept {
  thread_cache* const mine = mine_without_lock();
  if (mine == nullptr || !mine->enter()) return aside::refused;
  const auto leave = [mine](aside how) { return mine->leave(), how; };
  const pointer_map::lookup seen = pointers_.find(at);
  const owner_word w = seen.word();
  if (!w.plainly_live() || mine->aside.full()) return leave(aside::refused);
  if (!take_from_program(seen, w, at)) return leave(aside::refused);
  cache_figures& f = mine->figures;
  note_free(f, w);
  f.aside_bytes += w.bytes();
  return leave(mine->aside.push(seen.at, w.bytes()) ? aside::fence_due : aside::taken);
}

bool block_cache::fence_aside(fence f) noexcept {
  thread_cache* const mine = mine_without_lock();
  if (mine == nullptr || !mine->enter()) return false;
  const bool taken = mine->aside.fenced_by(f);
  mine->leave();
  return taken;
}

bool block_cache::free(thread_cache& mine, address at, const free_args* stated) noexcept {
  if (device_.condition() != device_condition::usable || !mine.enter()) return false;
  const bool of_one = stated != nullptr && stated->stream;
  const stream_cache* const only = of_one ? mine.of_handle(stated->stream->handle) : nullptr;
  const bool taken = (!of_one || only != nullptr) && free_to_stream(mine, at, stated, only, false);
  mine.leave();
  return taken;
}

bool block_cache::free_by_key(address at, std::optional<std::uint64_t> key, const free_args& stated) noexcept {
  if (device_.condition() != device_condition::usable) return false;
  thread_cache* const mine = mine_without_lock();
  if (mine == nullptr) {
    thread_cache* const noted = mine_noted();
    return noted != nullptr && free_noted(*noted, at, &stated, key ? match::key : match::any, key.value_or(0));
  }
  if (!mine->enter()) return false;
  const stream_cache* const only = key ? mine->of_key(*key) : nullptr;
  const bool taken = (!key || only != nullptr) && free_to_stream(*mine, at, &stated, only, false);
  mine->leave();
  return taken;
}

bool block_cache::free_by_handle(address at, const free_args& stated) noexcept {
  if (device_.condition() != device_condition::usable) return false;
  thread_cache* const mine = mine_without_lock();
  if (mine == nullptr) {
    thread_cache* const noted = mine_noted();
    return noted != nullptr && free_noted(*noted, at, &stated, match::block_handle, 0);
  }
  if (!mine->enter()) return false;
  const bool taken = free_to_stream(*mine, at, &stated, nullptr, true);
  mine->leave();
  return taken;
}

bool block_cache::free_noted(thread_cache& mine, address at, const free_args* stated) noexcept {
  const bool of_one = stated != nullptr && stated->stream;
  return free_noted(mine, at, stated, of_one ? match::handle : match::any, 0);
}

// With a history; `how` says which stream's blocks it takes. The word has the size before it becomes the cache's.
bool block_cache::free_noted(thread_cache& mine, address at, const free_args* stated, match how,
                             std::uint64_t key) noexcept {
  if (device_.condition() != device_condition::usable || !mine.enter()) return false;
  const stream_cache* only = nullptr;
  if (how == match::key) only = mine.of_key(key);
  if (how == match::handle) only = mine.of_handle(stated->stream->handle);
  bool taken = mine.events != nullptr && !mine.events->is_full();
  if (only == nullptr && (how == match::key || how == match::handle)) taken = false;
  if (taken) {
    const owner_word held = pointers_.find(at).word();
    taken = free_to_stream(mine, at, stated, only, how == match::block_handle);
    if (taken) {
      history_->add(*mine.events, event_kind::freed, at, held.requested_bytes(),
                    mine.of_owner(held.owner())->stream().handle);
    }
  }
  mine.leave();
  return taken;
}

}  // namespace gpumem
