// What threads' caches and the arena hand each other: batches through the depot, single blocks from and to the arena,
// and everything back when memory is short, a capture begins, a stream ends or a thread does.
//
// All under the lock. A thread's own cache needs no more than that; another's is stopped first (reclaim, reclaim_all,
// insert where the table grows, the figures).
#include "block_cache.hpp"

#include <algorithm>
#include <array>
#include <new>
#include <utility>

namespace gpumem {
namespace {

constexpr std::uint8_t first_room = 8;  // of a bin; it doubles each time that this is too little
constexpr unsigned misses_a_look = 4;   // at bins that may hold what is not used any more

constexpr std::uint64_t batch_bytes(std::uint32_t units) {
  return std::uint64_t{stream_cache::batch} * units * block_granularity;
}

}  // namespace

block_cache::block_cache(const device& on, arena_below& below, const options& how,
                         std::function<void(thread_cache&)> thread_ends)
    : device_{on},
      below_{below},
      on_{how.on},
      without_lock_{how.without_lock},
      caches_{*this, how.place, std::move(thread_ends)} {}

thread_cache* block_cache::mine() noexcept {
  if (!on_) return nullptr;
  try {
    thread_cache* const mine = caches_.make_mine();
    if (mine != nullptr) fold(*mine);
    return mine;
  } catch (const std::bad_alloc&) {
    return nullptr;  // the arena serves this thread until the host has memory
  }
}

// With one thread the peak is exact: what is out changes only here, and the cache has noted how much of it it handed
// out in between. Other threads' caches are counted with what they held when these were here.
void block_cache::fold(thread_cache& c) noexcept {
  cache_figures& f = c.figures;
  const std::uint64_t out = below_.out_bytes() + static_cast<std::uint64_t>(f.most_handed_bytes);
  const std::uint64_t cached = in_caches_bytes_ + depot_.bytes();
  if (out > cached) peak_live_bytes_ = std::max(peak_live_bytes_, out - cached);
  in_caches_bytes_ -= static_cast<std::uint64_t>(f.handed_bytes);
  f.held_bytes -= static_cast<std::uint64_t>(f.handed_bytes);
  f.handed_bytes = f.most_handed_bytes = 0;
}

std::uint64_t block_cache::live_bytes() const noexcept {
  const std::uint64_t out = below_.out_bytes();
  const std::uint64_t cached = in_caches_bytes_ + depot_.bytes();
  return out > cached ? out - cached : 0;
}

void block_cache::note_live() noexcept { peak_live_bytes_ = std::max(peak_live_bytes_, live_bytes()); }

address block_cache::refill(thread_cache& mine, cached_stream of, std::uint64_t bytes, std::uint64_t requested) {
  const auto units = static_cast<std::uint32_t>(bytes / block_granularity);
  stream_cache* s = mine.of_owner(of.owner);
  stream_cache::bin* bin = s != nullptr ? s->find(units) : nullptr;
  // Where it holds some, another thread had stopped the cache when the hit was tried.
  if (bin == nullptr || bin->count == 0) {
    returning_.asked(units);
    if (!depot_.holds(of.owner, units)) return 0;
    s = cache_for(mine, of);  // which takes host memory: the batch is the depot's until it is there
    if (s == nullptr) return 0;
    bin = &bin_for(mine, *s, units);
    bin->fill_reversed(depot_.take(of.owner, units));
    bin->most = std::max(bin->most, bin->count);
    count(mine, units, bin->count);
    mine.figures.filled += bin->count;
  }
  const address at = pop(mine, *bin, requested);
  fold(mine);
  return at;
}

// Null where the host has no memory for a new one: then the arena serves, and takes back.
stream_cache* block_cache::cache_for(thread_cache& mine, cached_stream of) noexcept {
  if (stream_cache* const have = mine.of_owner(of.owner); have != nullptr) return have;
  if (mine.full()) {
    const owner_id going = mine.next_to_go();
    empty(mine, going);
    mine.forget(going);
  }
  try {
    return &mine.add(of.owner, of.key);
  } catch (const std::bad_alloc&) {
    return nullptr;
  }
}

// The bin of that size, in use, emptied of another size if need be.
stream_cache::bin& block_cache::bin_for(thread_cache& mine, stream_cache& s, std::uint32_t units) noexcept {
  stream_cache::bin* const have = s.find(units);
  stream_cache::bin& bin = have != nullptr ? *have : s.bin_to_change(units);
  if (have == nullptr) empty(mine, s, bin);
  if (have == nullptr || bin.most == 0) s.open(bin, units, first_room);
  return bin;
}

// `blocks` more of that size in the cache, or fewer; neither handed out nor taken in.
void block_cache::count(thread_cache& c, std::uint32_t units, std::int64_t blocks) noexcept {
  const std::uint64_t bytes = static_cast<std::uint64_t>(blocks) * units * block_granularity;
  c.figures.held_bytes += bytes;
  in_caches_bytes_ += bytes;
  c.figures.limited_bytes += static_cast<std::uint64_t>(blocks) * bin_places::limited_bytes(units);
}

bool block_cache::keep(thread_cache& mine, slot_index slot, cached_stream of, std::uint64_t bytes, unsigned klass) {
  const auto units = static_cast<std::uint32_t>(bytes / block_granularity);
  cache_figures& f = mine.figures;
  const class_room room = below_.room_of(klass);
  const bool repeats = pairs_.freed(pointers_[slot].begin.load(std::memory_order_relaxed));
  const std::uint64_t most = retention_.may_keep(bytes, room, in_caches_bytes_ + depot_.bytes(), peak_live_bytes_);
  // Any other of these would hold a page, or, with several segment classes, most of a segment: the next request would
  // take another one.
  const bool of_pair = room.paged ? units > retention::most_units_of_paged
                                  : !room.only_class && bin_places::is_limited(units) && bytes > most;
  if (of_pair) {
    if (!repeats) return false;
  } else if (!bin_places::is_limited(units)) {
    if (f.unlimited_bytes() + bytes > most) return false;
  } else {
    f.most_limited_bytes = most;
    if (!retention_.calm() || !returning_.freed(units)) return false;
    if (bytes > most && f.limited_bytes != 0) return false;  // one block of any size, more within the limit
    if (f.limited_bytes != 0 && f.limited_bytes + bytes > most) shed(mine, (most - bytes) / 4 * 3);
  }
  stream_cache* const s = cache_for(mine, of);
  if (s == nullptr) return false;
  stream_cache::bin& bin = bin_for(mine, *s, units);
  if (of_pair) {
    bin.most = stream_cache::alone;
    pairs_.kept = {.in = &mine, .owner = of.owner, .units = units};
  }
  hold(mine, *s, bin, slot, most);
  pointers_[slot].write(owner_word::plain(bytes, bytes, of.owner).cached());
  return true;
}

// Into that bin. A bin that is full becomes larger, hands a batch over, or gives half of what it has back. The depot is
// to hold `most` bytes.
void block_cache::hold(thread_cache& mine, stream_cache& s, stream_cache::bin& bin, slot_index i, std::uint64_t most) {
  if (bin.count == bin.most) {
    if (bin.most < stream_cache::room) {
      bin.most = static_cast<std::uint8_t>(std::min<unsigned>(bin.most * 2U, stream_cache::room));
    } else if (!hand_over(mine, s, bin, most)) {
      empty(mine, s, bin, bin.count / 2U);
    }
  }
  bin.push(i);
  count(mine, bin.units, 1);
  ++mine.figures.filled;
}

// Gives the oldest batch of a full bin to the depot.
bool block_cache::hand_over(thread_cache& mine, stream_cache& s, stream_cache::bin& bin, std::uint64_t most) {
  if (depot_.bytes() + batch_bytes(bin.units) > most) return false;
  depot::batch oldest;
  std::copy_n(bin.held.begin(), oldest.size(), oldest.begin());
  try {
    if (!depot_.put(s.owner(), bin.units, oldest)) return false;
  } catch (const std::bad_alloc&) {  // the host is short, and the batch where it was
    return false;
  }
  bin.drop_oldest(stream_cache::batch);
  count(mine, bin.units, -std::int64_t{stream_cache::batch});
  mine.figures.emptied += stream_cache::batch;
  return true;
}

void block_cache::return_pair(const thread_cache* mine) noexcept {
  if (pairs_.kept.in == nullptr) return;
  const pair_watch::place kept = std::exchange(pairs_.kept, {});
  const auto close = [&] {
    stream_cache* const s = kept.in->of_owner(kept.owner);
    stream_cache::bin* const bin = s != nullptr ? s->find(kept.units) : nullptr;
    if (bin == nullptr) return;  // another size or stream has taken its place, and given the block back
    empty(*kept.in, *s, *bin);
    s->close(*bin);
  };
  if (kept.in == mine) return close();
  const auto stopped = stop();
  fold(*kept.in);
  close();
}

// What lay in the bin unused since it was looked at last goes back, after the low-water marks of tcmalloc's and
// jemalloc's thread caches.
void block_cache::age(thread_cache* mine) {
  return_pair(mine);
  if (mine == nullptr || mine->figures.limited_bytes == 0 || ++mine->misses % misses_a_look != 0) return;
  std::uint32_t place = 0;
  stream_cache* const s = mine->next_limited_bin(&place);
  if (s == nullptr) return;
  stream_cache::bin& bin = s->at(place);
  if (bin.unused != 0) {
    empty(*mine, *s, bin, static_cast<std::uint32_t>(bin.count - bin.unused));
    if (bin.count == 0) {
      s->close(bin);
      returning_.unused(bin.units);
    }
  }
  bin.unused = bin.count;
}

// Gives all but small blocks back, bin by bin, until so much is left.
void block_cache::shed(thread_cache& mine, std::uint64_t left) noexcept {
  for (unsigned rings = 0; mine.figures.limited_bytes > left && rings < 2;) {
    std::uint32_t place = 0;
    stream_cache* const s = mine.next_limited_bin(&place);
    if (s == nullptr) {
      ++rings;
      continue;
    }
    stream_cache::bin& bin = s->at(place);
    empty(mine, *s, bin);
    s->close(bin);
    returning_.unused(bin.units);
  }
}

// Gives a bin's blocks back, the oldest first, but for the latest few.
void block_cache::empty(thread_cache& c, stream_cache& s, stream_cache::bin& bin, std::uint32_t keep_latest) noexcept {
  if (bin.count <= keep_latest) return;
  const std::uint32_t going = bin.count - keep_latest;
  for (std::uint32_t k = 0; k < going; ++k) return_block(bin.held[k], s.owner());
  bin.drop_oldest(going);
  count(c, bin.units, -std::int64_t{going});
  c.figures.emptied += going;
}

void block_cache::empty(thread_cache& c, owner_id o) noexcept {
  stream_cache* const s = c.of_owner(o);
  if (s == nullptr) return;
  for (std::uint32_t at = s->next_in_use(0); at != stream_cache::no_bin; at = s->next_in_use(at + 1)) {
    empty(c, *s, s->at(at));
    s->close(s->at(at));  // what is short is not hoarded: the bin starts anew, and small
  }
}

void block_cache::empty_depot(owner_id only) noexcept {
  depot_.take_all(only, [this](owner_id o, std::uint32_t /*units*/, const depot::batch& b) {
    for (const slot_index i : b) return_block(i, o);
  });
}

void block_cache::return_block(slot_index slot, owner_id o) noexcept {
  const block_index block = pointers_.block_of(slot);
  pointers_.erase(slot);
  below_.free_block(block, o);
}

// `all`: those without a fence, too.
void block_cache::bring_aside(thread_cache& c, bool all) noexcept {
  if (!all && !c.aside.any_complete()) return;
  c.aside.take(all, [&](const frees_aside::batch& b) {
    std::array<block_index, frees_aside::frees_a_fence> blocks{};
    for (std::uint32_t k = 0; k < b.count; ++k) {
      blocks[k] = pointers_.block_of(b.held[k]);
      pointers_.erase(b.held[k]);
    }
    c.figures.aside_bytes -= b.bytes;
    c.figures.held_bytes -= b.bytes;
    in_caches_bytes_ -= b.bytes;
    c.figures.emptied += b.count;
    below_.free_behind_fence({blocks.data(), b.count}, b.behind);
  });
}

bool block_cache::reclaim_all() {
  const std::uint32_t out = pointers_.size();
  const auto stopped = stop();
  empty_stopped();
  return pointers_.size() != out;
}

void block_cache::empty_stopped() noexcept {
  for (const auto& c : caches_.all()) {
    fold(*c);
    for (owner_id o = 0; o < c->owners(); ++o) empty(*c, o);
    bring_aside(*c, true);
  }
  empty_depot(idle_owner);
}

void block_cache::reclaim(owner_id only) {
  const auto stopped = stop();
  for (const auto& c : caches_.all()) {
    fold(*c);
    for (owner_id o = 0; o < c->owners(); ++o) {
      if ((only != idle_owner && o != only) || c->of_owner(o) == nullptr) continue;
      empty(*c, o);
      c->forget(o);
    }
  }
  empty_depot(only);
}

void block_cache::end(thread_cache& of, std::uint64_t* allocations, std::uint64_t* frees,
                      std::uint64_t* requested_bytes) {
  fold(of);
  for (owner_id o = 0; o < of.owners(); ++o) empty(of, o);
  bring_aside(of, true);
  if (pairs_.kept.in == &of) pairs_.kept = {};
  *allocations += of.allocations();
  *frees += of.figures.frees;
  *requested_bytes += of.figures.requested_bytes;
  caches_.remove(of);
}

// Caches know blocks by their slots, so they are emptied before the table doubles, which is seldom.
void block_cache::insert(address at, block_index i, owner_word w) {
  if (!pointers_.has_room()) {
    const auto stopped = stop();
    empty_stopped();
    try {
      pointers_.grow();
    } catch (const std::bad_alloc&) {
      if (!pointers_.has_room()) throw;  // what caches held may have made some
    }
  }
  pointers_.insert(at, i, w);
  pairs_.handed_out(at, w.bytes());
}

block_cache::sums block_cache::add_up() const {
  sums s{.held_bytes = depot_.bytes(), .held_blocks = depot_.held_blocks()};
  std::uint64_t most_live = below_.out_bytes() - depot_.bytes();
  s.metadata_bytes = depot_.metadata_bytes() + pointers_.bytes();
  for (const auto& c : caches_.all()) {
    const cache_figures& f = c->figures;
    s.held_bytes += f.held_bytes - static_cast<std::uint64_t>(f.handed_bytes);
    most_live -= f.held_bytes - static_cast<std::uint64_t>(f.most_handed_bytes);
    s.held_blocks += c->blocks();
    s.allocations += c->allocations();
    s.frees += f.frees;
    s.requested_bytes += f.requested_bytes;
    s.metadata_bytes += c->metadata_bytes();
  }
  s.peak_live_bytes = std::max(peak_live_bytes_, most_live);
  return s;
}

void block_cache::for_each_held(const std::function<void(slot_index, std::uint32_t, owner_id)>& each) const {
  for (const auto& c : caches_.all()) {
    for (owner_id o = 0; o < c->owners(); ++o) {
      const stream_cache* const s = c->of_owner(o);
      if (s == nullptr) continue;
      for (std::uint32_t at = s->next_in_use(0); at != stream_cache::no_bin; at = s->next_in_use(at + 1)) {
        const stream_cache::bin& bin = s->at(at);
        for (std::uint32_t k = 0; k < bin.count; ++k) each(bin.held[k], bin.units, o);
      }
    }
    for (const frees_aside::batch& b : c->aside.batches()) {
      for (const slot_index i : b.slots()) {
        const owner_word w = pointers_[i].read();
        each(i, static_cast<std::uint32_t>(w.units()), w.owner());
      }
    }
  }
  depot_.for_each([&each](owner_id o, std::uint32_t units, const depot::batch& b) {
    for (const slot_index i : b) each(i, units, o);
  });
}

}  // namespace gpumem
