// Moves blocks between threads' caches and the arena: batches through the depot, single blocks to and from the arena,
// and everything back when memory is short, a capture begins, or a stream or thread ends.
//
// All under the lock. A thread's own cache needs no more than that; another thread's is stopped first (reclaim,
// reclaim_all, insert if the table grows, the figures).
#include "block_cache.hpp"

#include <algorithm>
#include <array>
#include <new>
#include <utility>

namespace gpumem {

block_cache::block_cache(const device& device, cache_source& source, const options& how,
                         std::function<void(thread_cache&)> thread_ends)
    : history_{how.history_events != 0 ? std::make_unique<event_history>(how.history_events) : nullptr},
      fast_{device, caches_, history_.get(), how.without_lock},
      source_{source},
      enabled_{how.enabled},
      caches_{fast_, how.place, std::move(thread_ends)} {}

thread_cache* block_cache::mine() noexcept {
  if (!enabled_) return nullptr;
  try {
    thread_cache* const mine = caches_.make_mine();
    if (mine != nullptr) fold(*mine);
    return mine;
  } catch (const std::bad_alloc&) {
    return nullptr;  // the arena serves this thread until the host has memory
  }
}

// Updates the totals by a cache's figures. With one thread the peak is exact: the bytes out change only here, and the
// cache has noted its own maximum in between. Other threads' caches count as of their last time here.
void block_cache::fold(thread_cache& cache) noexcept {
  cache_figures& f = cache.figures;
  const std::uint64_t out_bytes = source_.out_bytes() + static_cast<std::uint64_t>(f.most_handed_bytes);
  const std::uint64_t cached = in_caches_bytes_ + depot_.bytes();
  if (out_bytes > cached) peak_live_bytes_ = std::max(peak_live_bytes_, out_bytes - cached);
  in_caches_bytes_ -= static_cast<std::uint64_t>(f.handed_bytes);
  f.held_bytes -= static_cast<std::uint64_t>(f.handed_bytes);
  f.handed_bytes = f.most_handed_bytes = 0;
}

std::uint64_t block_cache::live_bytes() const noexcept {
  const std::uint64_t out_bytes = source_.out_bytes();
  const std::uint64_t cached = in_caches_bytes_ + depot_.bytes();
  return out_bytes > cached ? out_bytes - cached : 0;
}

address block_cache::refill(const std::optional<cached_stream>& stream, std::uint64_t bytes, const request& asked) {
  thread_cache* const thread = mine();
  if (thread != nullptr) {
    flush_deferred(*thread, false);
    const address begin = stream ? take_batch(*thread, *stream, bytes, asked.bytes) : 0;
    if (begin != 0) {
      note(event_kind::allocated, begin, asked.bytes, asked.stream);
      return begin;
    }
  }
  return_pair(thread);
  retention_.served_below(bytes, peak_live_bytes_);
  if (bin_index::is_limited(bytes / block_granularity)) repetition_.count(bytes, live_bytes());
  return 0;
}

address block_cache::take_batch(thread_cache& mine, const cached_stream& stream, std::uint64_t bytes,
                                std::uint64_t requested) {
  const auto units = static_cast<std::uint32_t>(bytes / block_granularity);
  stream_cache* s = mine.of_owner(stream.owner);
  stream_cache::bin* bin = s != nullptr ? s->find(units) : nullptr;
  // If the bin holds some, another thread had stopped the cache when the hit was tried.
  if (bin == nullptr || bin->count == 0) {
    if (!depot_.holds(stream.owner, units)) return 0;
    s = cache_for(mine, stream);  // may fail for host memory, so the batch stays in the depot until then
    if (s == nullptr) return 0;
    bin = &bin_for(mine, *s, units);
    bin->fill_reversed(depot_.take(stream.owner, units));
    bin->capacity = std::max(bin->capacity, bin->count);
    count(mine, units, bin->count);
    mine.figures.filled += bin->count;
  }
  const address begin = fast_.pop(mine, *bin, requested);
  fold(mine);
  return begin;
}

// Returns the thread's blocks of owner `only` and ends its stream cache; those of every owner for `idle_owner`.
void block_cache::forget(thread_cache& cache, owner_id only) noexcept {
  const auto end = [&](owner_id owner) {
    stream_cache& s = *cache.of_owner(owner);
    s.for_each_in_use([&](stream_cache::bin& bin) { close(cache, s, bin); });
    cache.forget(owner);
    source_.unref_owner(owner);
  };
  if (only != idle_owner) {
    if (cache.of_owner(only) != nullptr) end(only);
    return;
  }
  for (owner_id owner = cache.any_owner(); owner != idle_owner; owner = cache.any_owner()) end(owner);
}

// Null if the thread has too many streams, or the host has no memory for a new one. The arena then serves the request
// or takes the block back.
stream_cache* block_cache::cache_for(thread_cache& mine, const cached_stream& stream) noexcept {
  if (stream_cache* const have = mine.of_owner(stream.owner); have != nullptr) return have;
  if (mine.full()) {
    if (!mine.may_replace()) return nullptr;
    forget(mine, mine.next_replaced());
  }
  try {
    stream_cache& added = mine.add(stream);
    source_.ref_owner(stream.owner);
    return &added;
  } catch (const std::bad_alloc&) {
    return nullptr;
  }
}

// An open bin for blocks of `units`. Large sizes share bins, so blocks of another size leave the bin first.
stream_cache::bin& block_cache::bin_for(thread_cache& mine, stream_cache& stream, std::uint32_t units) noexcept {
  stream_cache::bin& bin = stream.bin_of(units);
  if (bin.units != units) empty(mine, stream, bin);
  if (bin.units != units || bin.capacity == 0) stream.open(bin, units);
  return bin;
}

// Adds `blocks`, which may be negative, to the figures without counting them as handed out or taken in.
void block_cache::count(thread_cache& cache, std::uint32_t units, std::int64_t blocks) noexcept {
  const std::uint64_t bytes = static_cast<std::uint64_t>(blocks) * units * block_granularity;
  cache.figures.held_bytes += bytes;
  in_caches_bytes_ += bytes;
  cache.figures.limited_bytes += static_cast<std::uint64_t>(blocks) * bin_index::limited_bytes(units);
}

bool block_cache::keep(thread_cache& mine, slot_index slot, const cached_stream& stream, std::uint64_t bytes,
                       unsigned segment_class) {
  const auto units = static_cast<std::uint32_t>(bytes / block_granularity);
  cache_figures& f = mine.figures;
  const class_usage usage = source_.usage_of(segment_class);
  const bool repeats = pairs_.freed(pointers()[slot].begin.load(std::memory_order_relaxed));
  const std::uint64_t most = retention_.may_keep(bytes, usage);
  const bool is_limited = bin_index::is_limited(units);
  // Other streams cannot use such a block: it holds a page, or more than the thread's share. Their next request would
  // take new memory.
  const bool of_pair = is_limited && (bytes > most || usage.paged);
  if (is_limited) f.most_limited_bytes = most;
  if (of_pair) {
    if (!repeats) return false;
  } else if (!is_limited) {
    if (f.unlimited_bytes() + bytes > most) return false;
  }
  stream_cache* const s = cache_for(mine, stream);
  if (s == nullptr) return false;
  if (is_limited && !of_pair && f.limited_bytes + bytes > most) shed(mine, (most - bytes) / 4 * 3);
  stream_cache::bin& bin = bin_for(mine, *s, units);
  if (of_pair) {
    empty(mine, *s, bin);  // if another thread allocated the block, the bin may hold others
    bin.capacity = stream_cache::alone;
    pairs_.kept = {.cache = &mine, .owner = stream.owner, .units = units};
  } else if (bin.count == bin.capacity && !hand_over(mine, *s, bin, most)) {
    empty(mine, *s, bin, bin.count / 2U);
  }
  bin.push(slot);
  count(mine, units, 1);
  ++f.filled;
  pointers()[slot].write(owner_word::plain(bytes, bytes, stream.owner).cached());
  return true;
}

// Moves the oldest batch of a full bin to the depot, which may hold `most` bytes.
bool block_cache::hand_over(thread_cache& mine, stream_cache& stream, stream_cache::bin& bin, std::uint64_t most) {
  if (bin.count < stream_cache::batch || depot_.bytes() + depot::bytes_of(bin.units) > most) return false;
  depot::batch oldest;
  std::copy_n(bin.held.begin(), oldest.size(), oldest.begin());
  try {
    if (!depot_.put(stream.owner(), bin.units, oldest)) return false;
  } catch (const std::bad_alloc&) {  // no host memory: the batch stays in the bin
    return false;
  }
  bin.drop_oldest(stream_cache::batch);
  count(mine, bin.units, -std::int64_t{stream_cache::batch});
  mine.figures.emptied += stream_cache::batch;
  return true;
}

void block_cache::return_pair(const thread_cache* mine) noexcept {
  if (pairs_.kept.cache == nullptr) return;
  const pair_watch::place kept = std::exchange(pairs_.kept, {});
  const auto give_back = [&] {
    stream_cache* const s = kept.cache->of_owner(kept.owner);
    stream_cache::bin* const bin = s != nullptr ? s->find(kept.units) : nullptr;
    if (bin != nullptr) close(*kept.cache, *s, *bin);  // else another size or stream has its place, and returned it
  };
  if (kept.cache == mine) return give_back();
  const auto stopped = stop();
  fold(*kept.cache);
  give_back();
}

// Returns blocks, except small ones, bin by bin until at most `left` bytes are left.
void block_cache::shed(thread_cache& mine, std::uint64_t left) noexcept {
  mine.for_each_bin([&](stream_cache& stream, stream_cache::bin& bin) {
    if (mine.figures.limited_bytes > left && bin_index::is_limited(bin.units)) close(mine, stream, bin);
  });
}

// Returns a bin's blocks, oldest first, except the `keep_latest` latest.
void block_cache::empty(thread_cache& cache, stream_cache& stream, stream_cache::bin& bin,
                        std::uint32_t keep_latest) noexcept {
  if (bin.count <= keep_latest) return;
  const std::uint32_t going = bin.count - keep_latest;
  for (std::uint32_t k = 0; k < going; ++k) return_block(bin.held[k], stream.owner());
  bin.drop_oldest(going);
  count(cache, bin.units, -std::int64_t{going});
  cache.figures.emptied += going;
}

// Returns all blocks of a bin. It is opened again when a block of its size is freed.
void block_cache::close(thread_cache& cache, stream_cache& stream, stream_cache::bin& bin) noexcept {
  empty(cache, stream, bin);
  stream.close(bin);
}

// Returns all of a thread's blocks, with its deferred frees.
void block_cache::empty(thread_cache& cache) noexcept {
  cache.for_each_bin([&](stream_cache& stream, stream_cache::bin& bin) { close(cache, stream, bin); });
  flush_deferred(cache, true);
}

void block_cache::empty_depot(owner_id only) noexcept {
  depot_.take_all(only, [this](owner_id owner, const depot::batch& batch) {
    for (const slot_index i : batch) return_block(i, owner);
  });
}

void block_cache::return_block(slot_index slot, owner_id owner) noexcept {
  const block_index block = pointers().block_of(slot);
  pointers().erase(slot);
  source_.free_block(block, owner);
}

// Hands the thread's deferred batches over to the arena: the complete ones or, with `all`, also the incomplete one,
// which has no fence.
void block_cache::flush_deferred(thread_cache& cache, bool all) noexcept {
  if (!all && !cache.deferred.any_complete()) return;
  cache.deferred.take(all, [&](const deferred_frees::batch& batch) {
    std::array<block_index, deferred_frees::frees_a_fence> blocks{};
    for (std::uint32_t k = 0; k < batch.count; ++k) {
      blocks[k] = pointers().block_of(batch.held[k]);
      pointers().erase(batch.held[k]);
    }
    cache.figures.deferred_bytes -= batch.bytes;
    cache.figures.held_bytes -= batch.bytes;
    in_caches_bytes_ -= batch.bytes;
    cache.figures.emptied += batch.count;
    source_.free_behind_fence({blocks.data(), batch.count}, batch.batch_fence);
  });
}

bool block_cache::reclaim_all() {
  const std::uint32_t blocks_before = pointers().size();
  const auto stopped = stop();
  empty_stopped();
  return pointers().size() != blocks_before;
}

void block_cache::empty_stopped() noexcept {
  for (const auto& c : caches_.all()) {
    fold(*c);
    empty(*c);
  }
  empty_depot(idle_owner);
}

void block_cache::reclaim(owner_id only) {
  const auto stopped = stop();
  for (const auto& c : caches_.all()) {
    fold(*c);
    forget(*c, only);
  }
  empty_depot(only);
}

void block_cache::end(thread_cache& cache, std::uint64_t* allocations, std::uint64_t* frees,
                      std::uint64_t* requested_bytes) {
  fold(cache);
  flush_deferred(cache, true);
  forget(cache, idle_owner);
  if (pairs_.kept.cache == &cache) pairs_.kept = {};
  if (cache.events != nullptr) history_->end_thread(cache.events);
  *allocations += cache.allocations();
  *frees += cache.figures.frees;
  *requested_bytes += cache.figures.requested_bytes;
  caches_.remove(cache);
}

// Caches know blocks by their slots, so they are emptied before the table doubles, which is rare.
void block_cache::insert(address pointer, block_index block, owner_word word) {
  if (!pointers().has_room()) {
    const auto stopped = stop();
    empty_stopped();
    try {
      pointers().grow();
    } catch (const std::bad_alloc&) {
      if (!pointers().has_room()) throw;  // emptied caches may have made some
    }
  }
  pointers().insert(pointer, block, word);
  pairs_.handed_out(pointer, word.bytes());
  peak_live_bytes_ = std::max(peak_live_bytes_, live_bytes());
}

void block_cache::note_event(event_kind kind, address pointer, std::uint64_t requested_bytes,
                             stream_ref stream) noexcept {
  thread_cache* const thread = caches_.mine();
  history_chunk*& chunk = thread != nullptr ? thread->events : events_of_others_;
  if (chunk == nullptr || chunk->is_full()) chunk = history_->renew(chunk);
  if (chunk != nullptr)
    history_->add(*chunk, kind, pointer, requested_bytes, stream);
  else
    history_->lose();
}

block_cache::sums block_cache::add_up() const {
  sums total{.held_bytes = depot_.bytes(), .held_blocks = depot_.held_blocks()};
  std::uint64_t most_live = source_.out_bytes() - depot_.bytes();
  total.metadata_bytes = depot_.metadata_bytes() + pointers().bytes();
  for (const auto& cache : caches_.all()) {
    const cache_figures& figures = cache->figures;
    total.held_bytes += figures.held_bytes - static_cast<std::uint64_t>(figures.handed_bytes);
    most_live -= figures.held_bytes - static_cast<std::uint64_t>(figures.most_handed_bytes);
    total.held_blocks += cache->blocks();
    total.allocations += cache->allocations();
    total.frees += figures.frees;
    total.requested_bytes += figures.requested_bytes;
    total.metadata_bytes += cache->metadata_bytes();
  }
  total.peak_live_bytes = std::max(peak_live_bytes_, most_live);
  return total;
}

void block_cache::for_each_held(const std::function<void(slot_index, std::uint32_t, owner_id)>& each) const {
  for (const auto& c : caches_.all()) {
    c->for_each_bin([&each](const stream_cache& stream, const stream_cache::bin& bin) {
      for (std::uint32_t k = 0; k < bin.count; ++k) each(bin.held[k], bin.units, stream.owner());
    });
    for (const deferred_frees::batch& b : c->deferred.batches()) {
      for (const slot_index i : b.slots()) {
        const owner_word w = pointers()[i].read();
        each(i, static_cast<std::uint32_t>(w.units()), w.owner());
      }
    }
  }
  depot_.for_each([&each](owner_id owner, std::uint32_t units, const depot::batch& batch) {
    for (const slot_index i : batch) each(i, units, owner);
  });
}

}  // namespace gpumem
