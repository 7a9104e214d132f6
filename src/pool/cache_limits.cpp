// How much threads' caches keep. All under the pool's lock.
//
// A block in a cache cannot be merged with its neighbours, so what is placed meanwhile lies elsewhere than best fit has
// it, which near the limit costs utilization. So blocks are kept only once the pool is calm: no new peak of live bytes,
// and no request for which the caches had to be emptied (up to 4 KiB soon; larger ones after the peak was handed out
// many times over). Large ones only of sizes that come back or are asked for next, and while they are used: what lay in
// a bin since the last look goes to the heap (after the low-water marks of tcmalloc's and jemalloc's thread caches).
// Beyond a small share of what is free, and on a paged pool above 32 KiB, only on condition that it changes no
// placement: where the heap would place that size again, and no longer than the heap is unchanged: a pair of any size
// is a hit. And only what is asked for next: a free waits until that is known (deferred_frees.cpp). docs/performance.md
// tells what else was tried; the constants are those at which no recorded trace loses utilization.
#include <algorithm>

#include "pool.hpp"

namespace gpumem {
namespace {

constexpr unsigned calm_before = 128;       // times the peak of live bytes, before large blocks are kept
constexpr std::uint64_t small_calm = 512;   // requests, before small blocks are
constexpr std::uint64_t risen = 64;         // a peak that is higher by that part: the program still grows
constexpr unsigned misses_a_look = 4;       // at bins that may hold what is not used any more
constexpr double roomy_share = 0.5;         // of what is free, where there is twice of what was ever live
constexpr double tight_share = 0.02;        // and where there is less
constexpr double small_share = 1.0 / 1024;  // of what is out, in small blocks, however full the segments are

// The conversions of signed numbers are one instruction each.
double number(std::uint64_t bytes) noexcept { return static_cast<double>(static_cast<std::int64_t>(bytes)); }
std::uint64_t bytes_of(double number) noexcept { return static_cast<std::uint64_t>(static_cast<std::int64_t>(number)); }

}  // namespace

// A request that the heap served.
void pool::note_calm(std::uint64_t bytes) noexcept {
  const std::uint64_t peak = counts_.peak_live_bytes;
  if (peak - calm_peak_ > peak / risen) {
    calm_peak_ = peak;
    note_pressure();
  }
  ++calm_requests_;
  calm_bytes_ += bytes;
  calm_ = calm_ || (peak != 0 && calm_bytes_ >= calm_before * peak);
}

// What was kept goes back as it ages or is asked for. Each thread learns of it at its next free that comes by the lock.
void pool::note_pressure() noexcept {
  calm_ = false;
  calm_bytes_ = 0;
  calm_requests_ = 0;
}

// Bytes that a thread may keep of blocks of that size: a share of what is free in the segments that serve them, and the
// less the fuller these are.
std::uint64_t pool::may_keep(std::uint64_t bytes) const noexcept {
  const bool weighs = bin_places::weighs(bytes / block_granularity);
  if (!calm_ && (weighs || calm_requests_ < small_calm)) return 0;
  const unsigned klass = classes_ == 1 ? 0 : policy_->segment_class(bytes);
  const double whole = number(heap_.segment_bytes(klass));
  const double free = number(heap_.free_bytes(klass));
  if (whole == 0) return 0;
  const double empty = free / whole;
  if (weighs) {
    // A paged pool keeps freely what is small against a page, and everything else on condition.
    const bool roomy = paged() || counts_.peak_live_bytes <= heap_.totals().segment_bytes / 2;
    return bytes_of((roomy ? roomy_share : tight_share) * empty * free);
  }
  // What caches hold is free, as far as small blocks go: a large block that is kept, or a batch in the depot, would
  // else send those on their way from thread to thread to the heap. They are not counted by class.
  const double not_live = classes_ == 1 ? free + number(in_caches_bytes_ + depot_.bytes()) : free;
  const double share = not_live / whole;
  return bytes_of(std::max(share * share * share * not_live, small_share * (whole - free)));
}

// The next bin in use behind the hand, over all streams in a ring; null where the ring is through. Small blocks' bins
// are no part of it.
stream_cache* pool::next_bin(thread_cache& mine, std::uint32_t* place) noexcept {
  for (owner_id o = mine.hand / bin_places::all; o < mine.owners(); o = mine.hand / bin_places::all) {
    stream_cache* const s = mine.of_owner(o);
    const std::uint32_t from = std::max(mine.hand % bin_places::all, bin_places::small_bins);
    *place = s != nullptr ? s->next_in_use(from) : stream_cache::no_bin;
    mine.hand = o * bin_places::all + std::min(*place + 1, bin_places::all);
    if (*place != stream_cache::no_bin) return s;
  }
  mine.hand = 0;
  return nullptr;
}

// Looks at one bin, each fourth time: what lay there unused since it was looked at last goes to the heap.
void pool::age(thread_cache& mine) {
  if (mine.figures.weighed_bytes == 0 || ++mine.misses % misses_a_look != 0) return;
  std::uint32_t place = 0;
  stream_cache* const s = next_bin(mine, &place);
  if (s == nullptr) return;
  stream_cache::bin& bin = s->at(place);
  if (s->is_on_condition(bin)) return;  // this very miss returns it
  if (bin.unused != 0) {
    empty(mine, *s, bin, static_cast<std::uint32_t>(bin.count - bin.unused));
    if (bin.count == 0) {
      s->close(bin);
      returning_.unused(bin.units);
    }
  }
  bin.unused = bin.count;
}

// Before the heap serves a request of the thread or takes a block from it.
void pool::look_after(thread_cache& mine) {
  age(mine);
  if (mine.figures.on_condition) return_large(mine);
}

// What was kept because it would return to its place lies in the heap again when the heap changes.
[[gnu::noinline]] void pool::return_large(thread_cache& mine) {
  for (owner_id o = 0; o < mine.owners(); ++o) {
    stream_cache* const s = mine.of_owner(o);
    if (s == nullptr) continue;
    for (std::uint32_t at = s->next_on_condition(0); at != stream_cache::no_bin; at = s->next_on_condition(at + 1)) {
      stream_cache::bin& bin = s->at(at);
      empty(mine, *s, bin);
      s->close(bin);
    }
  }
  mine.figures.on_condition = false;
}

// True where the next request of that size would be placed where the block lies, were it free, unless there
// are two holes of one size.
[[gnu::noinline]] bool pool::would_return(block_index i, owner_id o) const noexcept {
  const block& b = heap_.at(i);
  const bool lowest = b.bytes >= page_rules_.lowest_fit_bytes;
  const auto joins = [&](block_index n) {
    if (n == no_block || heap_.at(n).state != block_state::free) return false;
    return heap_.at(n).owner == o || (heap_.at(n).owner == idle_owner && (lowest || streams_.single()));
  };
  const bool above = from_above(b.bytes, block_granularity);
  const auto beside = [&](block_index n) { return above ? heap_.at(n).below : heap_.at(n).above; };
  if (joins(above ? b.above : b.below)) return false;  // its hole would begin, or end, elsewhere
  std::uint64_t hole = b.bytes;
  for (block_index n = beside(i); joins(n); n = beside(n)) hole += heap_.at(n).bytes;
  const std::uint64_t begin = above ? b.begin + b.bytes - hole : b.begin;
  const auto part_of_hole = [&](block_index n) {
    return heap_.at(n).begin >= begin && heap_.at(n).begin < begin + hole;
  };
  const auto choice = [&](std::uint64_t least) {
    return lowest ? heap_.lowest_fit(b.klass, o, least, block_granularity)
                  : heap_.best_fit(b.klass, o, true, least, block_granularity);
  };
  block_index found = choice(b.bytes);
  while (!lowest && found != no_block && part_of_hole(found)) found = choice(heap_.at(found).bytes + block_granularity);
  if (found == no_block || part_of_hole(found)) return true;
  const block& other = heap_.at(found);
  const bool lies_above = other.begin > b.begin;
  if (!lowest) return other.bytes > hole || (other.bytes == hole && lies_above);
  return other.bytes == b.bytes ? hole == b.bytes && lies_above : hole == b.bytes || lies_above;
}

// Returns all but small blocks to the heap, bin by bin, until so much is left.
[[gnu::noinline]] void pool::shed(thread_cache& mine, std::uint64_t left) {
  for (unsigned rings = 0; mine.figures.weighed_bytes > left && rings < 2;) {
    std::uint32_t place = 0;
    stream_cache* const s = next_bin(mine, &place);
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

}  // namespace gpumem
