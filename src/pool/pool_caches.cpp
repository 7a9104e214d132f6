// What threads' caches and the pool hand each other: batches through the depot, single blocks from and to the heap, and
// everything back when memory is short, a capture begins, a stream ends or a thread does.
//
// All under the pool's lock. A thread's own cache needs no more than that; another's is stopped first (flush_caches,
// forget_caches, the statistics).
#include <algorithm>
#include <new>

#include "bits.hpp"
#include "pool.hpp"

namespace gpumem {
namespace {

constexpr std::uint8_t first_room = 8;  // of a bin; it doubles each time that this is too little

constexpr std::uint64_t batch_bytes(std::uint32_t units) {
  return std::uint64_t{stream_cache::batch} * units * block_granularity;
}

}  // namespace

pool::guard pool::enter() {
  guard lock{mutex_};
  ++counts_.locks;
  return lock;
}

// This thread's cache, with what happened in it since it was here last taken into account; null where caches are off.
thread_cache* pool::fold_mine() {
  if (!config_.thread_cache) return nullptr;
  try {
    thread_cache* const mine = caches_.make_mine();
    if (mine != nullptr) fold(*mine);
    return mine;
  } catch (const std::bad_alloc&) {
    return nullptr;  // the heap serves this thread until the host has memory
  }
}

// With one thread the peak is exact: what is out of the heap changes only here, and the cache has noted how much of it
// it handed out in between. Other threads' caches are counted with what they held when these were here.
void pool::fold(thread_cache& c) noexcept {
  cache_figures& f = c.figures;
  const std::uint64_t out = heap_.totals().live_bytes + static_cast<std::uint64_t>(f.most_handed_bytes);
  const std::uint64_t cached = in_caches_bytes_ + depot_.bytes();
  if (out > cached) counts_.peak_live_bytes = std::max(counts_.peak_live_bytes, out - cached);
  in_caches_bytes_ -= static_cast<std::uint64_t>(f.handed_bytes);
  f.held_bytes -= static_cast<std::uint64_t>(f.handed_bytes);
  f.handed_bytes = f.most_handed_bytes = 0;
}

void pool::note_live() noexcept {
  const std::uint64_t out = heap_.totals().live_bytes;
  const std::uint64_t cached = in_caches_bytes_ + depot_.bytes();
  if (out > cached) counts_.peak_live_bytes = std::max(counts_.peak_live_bytes, out - cached);
}

bool pool::plain_of(owner_id o, const stream_slot& slot, std::uint64_t bytes) noexcept {
  return o <= owner_word::most_owner && !slot.is_graph && bytes <= bin_places::most_units * block_granularity;
}

bool pool::cacheable(owner_id o, std::uint64_t bytes) const noexcept {
  const stream_slot& slot = streams_[o];
  return plain_of(o, slot, bytes) && streams_.captures() == 0 && !slot.gone;
}

// A block from a batch of the depot, the rest of which goes to the thread's bin; 0 where there is none of that size.
address pool::refill(thread_cache& mine, owner_id o, std::uint64_t bytes, std::uint64_t requested) {
  const auto units = static_cast<std::uint32_t>(bytes / block_granularity);
  stream_cache* s = mine.of_owner(o);
  stream_cache::bin* bin = s != nullptr ? s->find(units) : nullptr;
  // Where it holds some, another thread had stopped the cache when the hit was tried.
  if (bin == nullptr || bin->count == 0) {
    returning_.asked(units);
    if (!depot_.holds(o, units)) return 0;
    s = stream_cache_for(mine, o);  // which takes host memory: the batch is the depot's until it is there
    if (s == nullptr) return 0;
    bin = &bin_for(mine, *s, units);
    bin->fill_reversed(depot_.take(o, units));
    bin->most = std::max(bin->most, bin->count);
    count_cached(mine, units, bin->count);
    mine.figures.filled += bin->count;
  }
  const address at = pop_under_lock(mine, *bin, requested);
  fold(mine);
  return at;
}

// Null where the host has no memory for a new one: then the heap serves, and takes back.
stream_cache* pool::stream_cache_for(thread_cache& mine, owner_id o) noexcept {
  stream_cache* const have = mine.of_owner(o);
  return have != nullptr ? have : new_stream_cache(mine, o);
}

stream_cache* pool::new_stream_cache(thread_cache& mine, owner_id o) noexcept {
  if (mine.full()) {
    const owner_id going = mine.next_to_go();
    empty(mine, going);
    caches_.keep_spare(mine.forget(going));
  }
  try {
    return &mine.add(o, streams_[o].key, caches_.take_spare());
  } catch (const std::bad_alloc&) {
    return nullptr;
  }
}

// The bin of that size, in use, emptied of another size if need be.
stream_cache::bin& pool::bin_for(thread_cache& mine, stream_cache& s, std::uint32_t units) {
  stream_cache::bin* const have = s.find(units);
  stream_cache::bin& bin = have != nullptr ? *have : s.bin_to_change(units);
  if (have == nullptr) empty(mine, s, bin);
  if (have == nullptr || bin.most == 0) s.open(bin, units, first_room);
  return bin;
}

// `blocks` more of that size in the cache, or fewer; neither handed out nor taken in.
void pool::count_cached(thread_cache& c, std::uint32_t units, std::int64_t blocks) noexcept {
  const std::uint64_t bytes = static_cast<std::uint64_t>(blocks) * units * block_granularity;
  c.figures.held_bytes += bytes;
  in_caches_bytes_ += bytes;
  c.figures.limited_bytes += static_cast<std::uint64_t>(blocks) * bin_places::limited_bytes(units);
}

// Puts a block that the program gave up into the thread's cache. Requires that it is `cacheable`, and its slot the
// caller's to change. False where it is to go to the heap.
bool pool::keep(thread_cache& mine, slot_index place, owner_id o) {
  const std::uint64_t bytes = heap_.at(pointers_.block_of(place)).bytes;
  const auto units = static_cast<std::uint32_t>(bytes / block_granularity);
  cache_figures& f = mine.figures;
  const std::uint64_t most = may_keep(bytes, heap_.at(pointers_.block_of(place)).klass);
  if (!bin_places::is_limited(units)) {
    if (f.unlimited_bytes() + bytes > most) return false;
  } else {
    f.most_limited_bytes = most;
    if (!calm_ || !returning_.freed(units) || (paged() && units > freely_kept_units)) return false;
    // One block of any size, more within the limit. With several segment classes a block is most of its segment, and
    // the next request would take another one.
    if (bytes > most && (f.limited_bytes != 0 || policy_.segment_classes() > 1)) return false;
    if (f.limited_bytes != 0 && f.limited_bytes + bytes > most) shed(mine, (most - bytes) / 4 * 3);
  }
  stream_cache* const s = stream_cache_for(mine, o);
  if (s == nullptr) return false;
  hold(mine, *s, bin_for(mine, *s, units), place, most);
  pointers_[place].write(owner_word::plain(bytes, bytes, o).cached());
  return true;
}

// Into that bin. A bin that is full becomes larger, hands a batch over, or gives half of what it has to the heap. The
// depot is to hold `most` bytes.
void pool::hold(thread_cache& mine, stream_cache& s, stream_cache::bin& bin, slot_index i, std::uint64_t most) {
  if (bin.count == bin.most) {
    if (bin.most < stream_cache::room) {
      bin.most = static_cast<std::uint8_t>(std::min<unsigned>(bin.most * 2U, stream_cache::room));
    } else if (!hand_over(mine, s, bin, most)) {
      empty(mine, s, bin, bin.count / 2U);
    }
  }
  bin.push(i);
  count_cached(mine, bin.units, 1);
  ++mine.figures.filled;
}

// Gives the oldest batch of a full bin to the depot.
bool pool::hand_over(thread_cache& mine, stream_cache& s, stream_cache::bin& bin, std::uint64_t most) {
  if (depot_.bytes() + batch_bytes(bin.units) > most) return false;
  try {
    if (!depot_.put(s.owner(), bin.units, bin.held.data(), stream_cache::batch)) return false;
  } catch (const std::bad_alloc&) {  // the host is short, and the batch where it was
    return false;
  }
  bin.drop_oldest(stream_cache::batch);
  count_cached(mine, bin.units, -std::int64_t{stream_cache::batch});
  mine.figures.emptied += stream_cache::batch;
  return true;
}

// Returns a bin's blocks to the heap, the oldest first, but for the latest few.
void pool::empty(thread_cache& c, stream_cache& s, stream_cache::bin& bin, std::uint32_t keep_latest) {
  if (bin.count <= keep_latest) return;
  const std::uint32_t going = bin.count - keep_latest;
  for (std::uint32_t k = 0; k < going; ++k) to_heap(bin.held[k], s.owner());
  bin.drop_oldest(going);
  count_cached(c, bin.units, -std::int64_t{going});
  c.figures.emptied += going;
}

void pool::empty(thread_cache& c, owner_id o) {
  stream_cache* const s = c.of_owner(o);
  if (s == nullptr) return;
  for (std::uint32_t at = s->next_in_use(0); at != stream_cache::no_bin; at = s->next_in_use(at + 1)) {
    empty(c, *s, s->at(at));
    s->close(s->at(at));  // what is short is not hoarded: the bin starts anew, and small
  }
}

void pool::empty_depot(owner_id o) {
  for (depot::blocks b = depot_.take_any(o); !b.empty(); b = depot_.take_any(o)) {
    for (const slot_index i : b) to_heap(i, o);
  }
}

void pool::to_heap(slot_index i, owner_id o) {
  const block_index block = pointers_.block_of(i);
  pointers_.erase(i);
  if (lookahead_.is_large(heap_.at(block).bytes)) [[unlikely]]
    lookahead_.freed(heap_.at(block).begin);
  streams_.free_block(block, o);
}

// Everything that caches and the depot hold goes to the heap; false where that was nothing.
bool pool::flush_caches() {
  const std::uint64_t out = heap_.totals().live_blocks;
  const thread_caches::stop_caches all{caches_};
  flush_stopped();
  return heap_.totals().live_blocks != out;
}

void pool::flush_stopped() {
  for (const auto& c : caches_.all()) {
    fold(*c);
    for (owner_id o = 0; o < c->owners(); ++o) empty(*c, o);
  }
  for (owner_id o = 0; o < depot_.owners(); ++o) empty_depot(o);
}

// Caches know blocks by their slots in the pointer map, so they are emptied first. Seldom: the table doubles. Where the
// host has no memory for that, nobody ever had the block.
void pool::make_room_for_slot_of(block_index i) {
  const thread_caches::stop_caches all{caches_};
  flush_stopped();
  try {
    pointers_.grow();
  } catch (const std::bad_alloc&) {
    if (pointers_.has_room()) return;  // what caches held had some
    if (follower_ != nullptr) follower_->gone(i);
    streams_.free_block(i, heap_.at(i).owner);
    throw;
  }
}

// No cache serves that owner any more (any owner, where it is `idle_owner`) until a thread comes with one of its
// blocks.
void pool::forget_caches(owner_id only) {
  const thread_caches::stop_caches all{caches_};
  for (const auto& c : caches_.all()) {
    fold(*c);
    for (owner_id o = 0; o < c->owners(); ++o) {
      if ((only != idle_owner && o != only) || c->of_owner(o) == nullptr) continue;
      empty(*c, o);
      caches_.keep_spare(c->forget(o));
    }
  }
  for (owner_id o = 0; o < depot_.owners(); ++o) {
    if (only == idle_owner || o == only) empty_depot(o);
  }
}

void pool::thread_ends(thread_cache& c) {
  if (device_.condition() == device_condition::forked) return;
  const guard lock = enter();
  fold(c);
  for (owner_id o = 0; o < c.owners(); ++o) empty(c, o);
  counts_.allocations += c.allocations();
  counts_.frees += c.figures.frees;
  counts_.requested_bytes += c.figures.requested_bytes;
  for (owner_id o = 0; o < c.owners(); ++o) {
    if (c.of_owner(o) != nullptr) caches_.keep_spare(c.forget(o));
  }
  caches_.remove(c);
}

}  // namespace gpumem
