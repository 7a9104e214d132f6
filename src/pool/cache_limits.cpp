// How much threads' caches keep. All under the pool's lock.
//
// A block in a cache cannot be merged with its neighbours, so what is placed meanwhile lies elsewhere than best fit has
// it, which near the limit costs utilization. So blocks are kept only once the pool is calm: no new peak of live bytes,
// and no request for which the caches had to be emptied (up to 4 KiB soon; larger ones after the peak was handed out
// many times over). Large ones only of sizes that come back or are asked for next, and while they are used: what lay in
// a bin since the last look goes to the heap (after the low-water marks of tcmalloc's and jemalloc's thread caches).
// On a paged pool nothing above 32 KiB is kept. The constants are those at which no recorded trace loses utilization.
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

// Bytes that a thread may keep of blocks of that size and class: a share of what is free in the segments that serve
// them, and the less the fuller these are.
std::uint64_t pool::may_keep(std::uint64_t bytes, unsigned klass) const noexcept {
  const bool is_limited = bin_places::is_limited(bytes / block_granularity);
  if (!calm_ && (is_limited || calm_requests_ < small_calm)) return 0;
  const double whole = number(heap_.segment_bytes(klass));
  const double free = number(heap_.free_bytes(klass));
  if (whole == 0) return 0;
  const double empty = free / whole;
  if (is_limited) {
    // A paged pool keeps only what is small against a page.
    const bool roomy = paged() || counts_.peak_live_bytes <= heap_.totals().segment_bytes / 2;
    return bytes_of((roomy ? roomy_share : tight_share) * empty * free);
  }
  // What caches hold is free, as far as small blocks go: a large block that is kept, or a batch in the depot, would
  // else send those on their way from thread to thread to the heap. They are not counted by class.
  const double not_live = policy_.segment_classes() == 1 ? free + number(in_caches_bytes_ + depot_.bytes()) : free;
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

// Before the heap serves a request of the thread or takes a block from it: looks at one bin, each fourth time. What lay
// there unused since it was looked at last goes to the heap.
void pool::age(thread_cache& mine) {
  if (mine.figures.limited_bytes == 0 || ++mine.misses % misses_a_look != 0) return;
  std::uint32_t place = 0;
  stream_cache* const s = next_bin(mine, &place);
  if (s == nullptr) return;
  stream_cache::bin& bin = s->at(place);
  if (bin.unused != 0) {
    empty(mine, *s, bin, static_cast<std::uint32_t>(bin.count - bin.unused));
    if (bin.count == 0) {
      s->close(bin);
      returning_.unused(bin.units);
    }
  }
  bin.unused = bin.count;
}

// Returns all but small blocks to the heap, bin by bin, until so much is left.
void pool::shed(thread_cache& mine, std::uint64_t left) {
  for (unsigned rings = 0; mine.figures.limited_bytes > left && rings < 2;) {
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
