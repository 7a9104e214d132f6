// What threads' caches and the pool hand each other: batches through the depot, single blocks from and to the heap, and
// everything back when memory is short, a capture begins, a stream ends or a thread does.
//
// All under the pool's lock. A thread's own cache needs no more than that; another's is claimed first (flush_caches,
// forget_caches, the statistics).
#include <algorithm>
#include <new>

#include "bits.hpp"
#include "pool_hit.hpp"

namespace gpumem {
namespace {

constexpr std::uint8_t first_room = 8;        // of a bin; it doubles each time that this is too little
constexpr std::uint64_t deferred_part = 128;  // of the pool may wait in a cache, where other threads cannot see it

constexpr std::uint64_t batch_bytes(std::uint32_t units) {
  return std::uint64_t{stream_cache::batch} * units * block_granularity;
}

}  // namespace

// Whoever is about to change what is the program's comes by here, and has it done before it waits for anything: behind
// a wait, a thread without a cache of its own would not know that another one is alone by then.
pool::guard pool::enter() {
  guard lock{mutex_};
  if (alone_ && !mutex_.alone()) [[unlikely]] {
    alone_ = false;
    caches_.end_alone();
    settle_all();  // what waited while nobody else could miss it
  }
  ++counts_.locks;
  return lock;
}

// This thread's cache, with what happened in it since it was here last taken into account; null where caches are off.
thread_cache* pool::fold_mine() {
  if (!config_.thread_cache) {
    mutex_.be_first();
    return nullptr;
  }
  thread_cache* mine = caches_.mine();
  if (mine == nullptr) mine = new_cache();
  if (mine == nullptr) return nullptr;
  fold(*mine);
  return mine;
}

[[gnu::cold]] thread_cache* pool::new_cache() {
  thread_cache* const made = caches_.make_mine();
  if (made == nullptr) return nullptr;
  mutex_.be_first();
  made->set_alone(alone_);
  return made;
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
  if (!alone_) f.most_deferred_bytes = heap_.totals().segment_bytes / deferred_part;
}

void pool::note_live() noexcept {
  const std::uint64_t out = heap_.totals().live_bytes;
  const std::uint64_t cached = in_caches_bytes_ + depot_.bytes();
  if (out > cached) counts_.peak_live_bytes = std::max(counts_.peak_live_bytes, out - cached);
}

bool pool::plain_of(owner_id o, const stream_slot& slot, std::uint64_t bytes) noexcept {
  return o <= claim_word::most_owner && !slot.is_graph && bytes <= bin_places::most_units * block_granularity;
}

bool pool::cacheable(owner_id o, std::uint64_t bytes) const noexcept {
  const stream_slot& slot = streams_[o];
  return plain_of(o, slot, bytes) && streams_.captures() == 0 && !slot.gone;
}

// A block from a batch of the depot, the rest of which goes to the thread's bin, and more batches beside it; 0 where
// there is none of that size.
address pool::refill(thread_cache& mine, owner_id o, std::uint64_t bytes, std::uint64_t requested) {
  const auto units = static_cast<std::uint32_t>(bytes / block_granularity);
  stream_cache* s = mine.of_owner(o);
  stream_cache::bin* bin = s != nullptr ? s->find(units) : nullptr;
  // Where it holds some, it was claimed when the hit was tried.
  if (bin == nullptr || (bin->count == 0 && !s->take_from_beside(*bin))) {
    returning_.asked(units);
    if (!depot_.may_hold(units) || !depot_.holds(o, units)) return 0;
    s = &stream_cache_for(mine, o);  // which takes host memory: the batch is the depot's until it is there
    bin = &bin_for(mine, *s, units);
    bin->fill_reversed(depot_.take(o, units));
    bin->most = std::max(bin->most, bin->count);
    count_cached(mine, units, bin->count);
    mine.figures.filled += bin->count;
    refill_beside(mine, *s, *bin);
  }
  const address at = pop(mine, *bin, requested);
  fold(mine);
  return at;
}

// Requires that nothing lies beside it. What the depot has are whole batches.
void pool::refill_beside(thread_cache& mine, stream_cache& s, const stream_cache::bin& bin) {
  stream_cache::stack* const beside = s.beside(bin);
  if (beside == nullptr || !depot_.may_hold(bin.units)) return;
  allow_beside(mine, bin, may_keep(std::uint64_t{bin.units} * block_granularity), beside);
  while (beside->count < beside->allowed) {
    const depot::blocks got = depot_.take(s.owner(), bin.units);
    if (got.empty()) break;
    // As in the bin: in the end, what was freed first is handed out first, so that a run of neighbours stays one.
    std::reverse_copy(got.begin(), got.end(), beside->held[beside->count].begin());
    ++beside->count;
    count_cached(mine, bin.units, depot::batch);
    mine.figures.filled += depot::batch;
  }
  std::reverse(beside->held.begin(), beside->held.begin() + beside->count);
}

// How many batches may lie beside that bin, where all small blocks of the cache are to be `most` bytes.
void pool::allow_beside(const thread_cache& mine, const stream_cache::bin& bin, std::uint64_t most,
                        stream_cache::stack* beside) noexcept {
  const std::uint64_t held = mine.figures.unweighed_bytes();
  const std::uint64_t more = most > held ? (most - held) / batch_bytes(bin.units) : 0;
  beside->allowed =
      static_cast<std::uint32_t>(std::min<std::uint64_t>(beside->count + more, stream_cache::stack::most));
}

stream_cache& pool::stream_cache_for(thread_cache& mine, owner_id o) {
  stream_cache* const have = mine.of_owner(o);
  return have != nullptr ? *have : new_stream_cache(mine, o);
}

[[gnu::cold]] stream_cache& pool::new_stream_cache(thread_cache& mine, owner_id o) {
  if (mine.full()) {
    const owner_id going = mine.next_to_go();
    empty(mine, going);
    caches_.keep_spare(mine.forget(going));
  }
  return mine.add(o, streams_[o].key, caches_.take_spare());
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
  c.figures.weighed_bytes += static_cast<std::uint64_t>(blocks) * bin_places::weight(units);
}

// Puts a block that the program gave up into the thread's cache; `wanted`: that size is what the thread asks for next.
// Requires that it is `cacheable`, and its claim the caller's to change. False where it is to go to the heap.
bool pool::keep(thread_cache& mine, claim_index place, owner_id o, bool wanted) {
  const block_index i = claims_.block_of(place);
  const std::uint64_t bytes = heap_.at(i).bytes;
  const auto units = static_cast<std::uint32_t>(bytes / block_granularity);
  cache_figures& f = mine.figures;
  const std::uint64_t most = may_keep(bytes);
  bool on_condition = false;
  if (!bin_places::weighs(units)) {
    if (f.unweighed_bytes() + bytes > most) return false;
  } else {
    f.most_weighed_bytes = most;
    if (!calm_ || (!returning_.freed(units) && !wanted)) return false;
    on_condition = bytes > most || (paged() && units > freely_kept_units);
    if (on_condition) {
      if (!wanted || !would_return(i, o)) return false;
      f.on_condition = true;
      f.most_weighed_bytes = std::max(most, f.weighed_bytes + bytes);
    } else if (f.weighed_bytes + bytes > most) {
      shed(mine, (most - bytes) / 4 * 3);
    }
  }
  stream_cache& s = stream_cache_for(mine, o);
  stream_cache::bin& bin = bin_for(mine, s, units);
  hold(mine, s, bin, place, most);
  if (on_condition) s.put_on_condition(bin);
  claims_[place].write(claim_word::plain(bytes, bytes, o, s.place_of(bin)).cached());
  return true;
}

// Into that bin, which then is the last resort of its room: a bin that is full becomes larger, hands batches over, or
// gives half of what it has to the heap. All small blocks of the cache are to be `most` bytes, and the depot's.
void pool::hold(thread_cache& mine, stream_cache& s, stream_cache::bin& bin, claim_index i, std::uint64_t most) {
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

// Makes room in a full bin: sets its oldest batch aside, or gives it to the depot, with all that lies beside it.
bool pool::hand_over(thread_cache& mine, stream_cache& s, stream_cache::bin& bin, std::uint64_t most) {
  const auto give = [&](const claim_index* first) {
    if (depot_.bytes() + batch_bytes(bin.units) > most) return false;
    try {
      if (!depot_.put(s.owner(), bin.units, first, stream_cache::batch)) return false;
    } catch (const std::bad_alloc&) {  // the host is short, and the batch where it was
      return false;
    }
    count_cached(mine, bin.units, -std::int64_t{stream_cache::batch});
    mine.figures.emptied += stream_cache::batch;
    return true;
  };
  if (stream_cache::stack* const beside = s.beside(bin)) {
    allow_beside(mine, bin, most, beside);
    if (s.set_aside(bin)) return true;
    std::uint32_t given = 0;
    while (given != beside->count && give(beside->held[given].data())) ++given;
    beside->drop_oldest(given);
  }
  if (!give(bin.held.data())) return s.set_aside(bin);
  bin.drop_batch();
  return true;
}

// Returns a bin's blocks to the heap, the oldest first, but for the latest few; where none is to stay, what lies beside
// it as well.
[[gnu::noinline, gnu::flatten]] void pool::empty(thread_cache& c, stream_cache& s, stream_cache::bin& bin,
                                                 std::uint32_t keep_latest) {
  if (keep_latest == 0) empty_beside(c, s, bin);
  if (bin.count <= keep_latest) return;
  const std::uint32_t going = bin.count - keep_latest;
  for (std::uint32_t k = 0; k < going; ++k) to_heap(bin.held[k], s.owner());
  bin.drop_oldest(going);
  count_cached(c, bin.units, -std::int64_t{going});
  c.figures.emptied += going;
}

[[gnu::noinline, gnu::cold]] void pool::empty_beside(thread_cache& c, stream_cache& s, const stream_cache::bin& bin) {
  stream_cache::stack* const beside = s.beside(bin);
  if (beside == nullptr) return;
  for (; beside->count != 0; --beside->count) {
    for (const claim_index i : beside->held[beside->count - 1]) to_heap(i, s.owner());
    count_cached(c, bin.units, -std::int64_t{stream_cache::batch});
    c.figures.emptied += stream_cache::batch;
  }
}

[[gnu::noinline]] void pool::empty(thread_cache& c, owner_id o) {
  stream_cache* const s = c.of_owner(o);
  if (s == nullptr) return;
  for (const claim_index i : take_deferred(c, *s)) to_heap(i, o);
  for (std::uint32_t at = s->next_in_use(0); at != stream_cache::no_bin; at = s->next_in_use(at + 1)) {
    empty(c, *s, s->at(at));
    s->close(s->at(at));  // what is short is not hoarded: the bin starts anew, and small
  }
}

[[gnu::cold]] void pool::empty_depot(owner_id o) {
  for (depot::blocks b = depot_.take_any(o); !b.empty(); b = depot_.take_any(o)) {
    for (const claim_index i : b) to_heap(i, o);
  }
}

void pool::to_heap(claim_index i, owner_id o) {
  const block_index block = claims_.block_of(i);
  claims_.erase(i);
  if (is_large(heap_.at(block).bytes)) [[unlikely]]
    note_large_free(heap_.at(block).begin);
  free_now(block, o);
}

// Everything that caches and the depot hold goes to the heap; false where that was nothing.
bool pool::flush_caches() {
  const std::uint64_t out = heap_.totals().live_blocks;
  const thread_caches::claim all{caches_};
  flush_claimed();
  return heap_.totals().live_blocks != out;
}

void pool::flush_claimed() {
  for (const auto& c : caches_.all()) {
    fold(*c);
    for (owner_id o = 0; o < c->owners(); ++o) empty(*c, o);
  }
  for (owner_id o = 0; o < depot_.owners(); ++o) empty_depot(o);
}

// Caches know blocks by where their claims stand, so they are emptied first. Seldom: the table doubles. Where the host
// has no memory for that, nobody ever had the block.
[[gnu::cold]] void pool::make_room_for_claim_of(block_index i) {
  const thread_caches::claim all{caches_};
  flush_claimed();
  try {
    claims_.grow();
  } catch (const std::bad_alloc&) {
    if (claims_.has_room()) return;  // what caches held had some
    if (follower_ != nullptr) follower_->gone(i);
    free_now(i, heap_.at(i).owner);
    throw;
  }
}

// No cache serves that owner any more (any owner, where it is `idle_owner`) until a thread comes with one of its
// blocks.
void pool::forget_caches(owner_id only) {
  const thread_caches::claim all{caches_};
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
  guard lock = enter();
  fold(c);
  for (owner_id o = 0; o < c.owners(); ++o) empty(c, o);
  counts_.allocations += c.allocations();
  counts_.frees += c.figures.frees;
  counts_.requested_bytes += c.figures.requested_bytes;
  for (owner_id o = 0; o < c.owners(); ++o) {
    if (c.of_owner(o) != nullptr) caches_.keep_spare(c.forget(o));
  }
  caches_.remove(c);
  mutex_.be_nobody();
  if (!one_may_be_alone()) return;
  alone_ = true;
  const char* const who = caches_.begin_alone();
  lock.release()->unlock_to(who);
}

// Whether one thread at most has a cache, and no other one is the first; asked by a thread that ends and has none any
// more.
bool pool::one_may_be_alone() const noexcept {
  if (alone_ || !asymmetric_fences() || caches_.all().size() > 1) return false;
  return mutex_.first() == nullptr || (!caches_.all().empty() && caches_.all().front()->thread() == mutex_.first());
}

}  // namespace gpumem
