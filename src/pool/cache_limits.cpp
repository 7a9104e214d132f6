// How much threads' caches keep. All under the pool's lock.
//
// A block in a cache cannot be merged with its neighbours, so whatever is placed meanwhile lies elsewhere than best fit
// would have put it, and near the limit of memory that costs utilization. So blocks are kept only
//   - once the pool is calm: no new peak of live bytes, and no request for which the caches had to be emptied. Up to
//     4 KiB they are kept after some hundred calm requests; larger ones after the peak was handed out many times over,
//     and then the share of free memory that a thread may keep doubles with further calm. A pool that grows or is
//     short behaves as if there were no caches, and half the share at which it was short is the most that it tries
//     again (as TCP probes for bandwidth): without that, a trace that repeats would meet a larger region in the end;
//   - (large ones) of sizes that come back: one that is freed, asked for, and freed again;
//   - (large ones) while they are used: what lay in a bin since the last look at it goes to the heap, a bin at a time
//     (after the low-water marks of tcmalloc's and jemalloc's thread caches).
// docs/performance.md tells what else was tried; the constants are those at which no recorded trace loses utilization.
#include <algorithm>

#include "pool.hpp"

namespace gpumem {
namespace {

constexpr unsigned calm_before = 128;      // times the peak of live bytes, before large blocks are kept
constexpr unsigned calm_between = 4;       // times, before the share doubles
constexpr std::uint64_t small_calm = 512;  // requests, before small blocks are
constexpr std::uint64_t risen = 64;        // a peak that is higher by that part: the program still grows
constexpr double first_share = 0.03;
constexpr double small_share = 1.0 / 1024;  // of what is out, in small blocks, however full the segments are

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
  if (calm_bytes_ < (share_ == 0 ? calm_before : calm_between) * peak) return;
  share_ = std::min(share_ == 0 ? first_share : share_ * 2, most_share_);
  calm_bytes_ = 0;
}

// A request did not fit while that share was kept. Half of it is the most from here on: a step that repeats would
// meet the same shortage again, and in one of them emptying the caches would not be enough.
void pool::note_shortage() noexcept {
  if (share_ != 0) most_share_ = share_ / 2;
  note_pressure();
}

// What was kept goes back as it ages or is asked for. Each thread learns of the new share at its next free that comes
// by the lock.
void pool::note_pressure() noexcept {
  share_ = 0;
  calm_bytes_ = 0;
  calm_requests_ = 0;
}

// Bytes that a thread may keep of blocks of that size: a share of what is free in the segments that serve them, and the
// less the fuller these are.
std::uint64_t pool::may_keep(std::uint64_t bytes) const noexcept {
  const unsigned klass = classes_ == 1 ? 0 : policy_->segment_class(bytes);
  const auto whole = static_cast<double>(heap_.segment_bytes(klass));
  const auto free = static_cast<double>(heap_.free_bytes(klass));
  if (whole == 0) return 0;
  const double empty = free / whole;
  if (bin_places::weight(bytes / block_granularity) != 0) return static_cast<std::uint64_t>(share_ * empty * free);
  if (share_ == 0 && calm_requests_ < small_calm) return 0;
  return static_cast<std::uint64_t>(std::max(empty * empty * empty * free, small_share * (whole - free)));
}

// The next bin in use behind the hand, over all streams in a ring; null where the ring is through.
stream_cache* pool::next_bin(thread_cache& mine, std::uint32_t* place) noexcept {
  for (owner_id o = mine.hand / bin_places::all; o < mine.owners(); o = mine.hand / bin_places::all) {
    stream_cache* const s = mine.of_owner(o);
    *place = s != nullptr ? s->next_in_use(mine.hand % bin_places::all) : stream_cache::no_bin;
    mine.hand = o * bin_places::all + std::min(*place + 1, bin_places::all);
    if (*place != stream_cache::no_bin) return s;
  }
  mine.hand = 0;
  return nullptr;
}

// Looks at one bin: what lay there unused since it was looked at last goes to the heap.
void pool::age(thread_cache& mine) {
  if (mine.figures.weighed_bytes == 0) return;
  std::uint32_t place = 0;
  stream_cache* const s = next_bin(mine, &place);
  if (s == nullptr) return;
  stream_cache::bin& bin = s->at(place);
  if (bin.units <= bin_places::small_units) return;
  if (bin.unused != 0) {
    empty(mine, *s, place, static_cast<std::uint32_t>(bin.count - bin.unused));
    if (bin.count == 0) {
      s->close(place);
      returning_.unused(bin.units);
    }
  }
  bin.unused = bin.count;
}

// Returns all but small blocks to the heap, bin by bin, until so much is left.
void pool::shed(thread_cache& mine, std::uint64_t left) {
  for (unsigned rings = 0; mine.figures.weighed_bytes > left && rings < 2;) {
    std::uint32_t place = 0;
    stream_cache* const s = next_bin(mine, &place);
    if (s == nullptr) {
      ++rings;
      continue;
    }
    if (s->at(place).units <= bin_places::small_units) continue;
    empty(mine, *s, place);
    s->close(place);
    returning_.unused(s->at(place).units);
  }
}

}  // namespace gpumem
