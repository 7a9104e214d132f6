// A block in a cache cannot be merged with its neighbours, so what is placed meanwhile lies elsewhere than best fit has
// it, which near the limit costs utilization. So blocks are kept only once the pool is calm: no new peak of live bytes,
// and no request for which the caches had to be emptied (up to 4 KiB soon; larger ones after the peak was handed out
// many times over). Large ones only of sizes that come back or are asked for next (returning_sizes.hpp), and while they
// are used. The constants are those at which no recorded trace loses utilization.
#include "retention.hpp"

#include <algorithm>

#include "stream_cache.hpp"

namespace gpumem {
namespace {

constexpr unsigned calm_before = 128;       // times the peak of live bytes, before large blocks are kept
constexpr std::uint64_t small_calm = 512;   // requests, before small blocks are
constexpr std::uint64_t risen = 64;         // a peak that is higher by that part: the program still grows
constexpr double roomy_share = 0.5;         // of what is free, where there is twice of what was ever live
constexpr double tight_share = 0.02;        // and where there is less
constexpr double small_share = 1.0 / 1024;  // of what is out, in small blocks, however full the segments are

// The conversions of signed numbers are one instruction each.
double number(std::uint64_t bytes) noexcept { return static_cast<double>(static_cast<std::int64_t>(bytes)); }
std::uint64_t bytes_of(double number) noexcept { return static_cast<std::uint64_t>(static_cast<std::int64_t>(number)); }

}  // namespace

void retention::served_below(std::uint64_t bytes, std::uint64_t peak_live) noexcept {
  if (peak_live - peak_ > peak_live / risen) {
    peak_ = peak_live;
    pressure();
  }
  ++requests_;
  bytes_ += bytes;
  calm_ = calm_ || (peak_live != 0 && bytes_ >= calm_before * peak_live);
}

// What was kept goes back as it ages or is asked for. Each thread learns of it at its next free that comes by the lock.
void retention::pressure() noexcept {
  calm_ = false;
  bytes_ = 0;
  requests_ = 0;
}

// A share of what is free in the segments that serve such blocks, and the less the fuller these are.
std::uint64_t retention::may_keep(std::uint64_t bytes, const class_room& room, std::uint64_t cached,
                                  std::uint64_t peak_live) const noexcept {
  const bool is_limited = bin_places::is_limited(bytes / block_granularity);
  if (!calm_ && (is_limited || requests_ < small_calm)) return 0;
  const double whole = number(room.bytes);
  const double free = number(room.free_bytes);
  if (whole == 0) return 0;
  if (is_limited) {
    // A paged pool keeps only what is small against a page.
    const bool roomy = room.paged || peak_live <= room.segment_bytes / 2;
    return bytes_of((roomy ? roomy_share : tight_share) * (free / whole) * free);
  }
  // What caches hold is free, as far as small blocks go: a large block that is kept, or a batch in the depot, would
  // else send those on their way from thread to thread to the heap. They are not counted by class.
  const double not_live = room.only_class ? free + number(cached) : free;
  const double share = not_live / whole;
  return bytes_of(std::max(share * share * share * not_live, small_share * (whole - free)));
}

}  // namespace gpumem
