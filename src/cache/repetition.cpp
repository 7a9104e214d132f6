#include "repetition.hpp"

#include <algorithm>

#include "mixed_bits.hpp"

namespace gpumem {
void repetition::count(std::uint64_t bytes, std::uint64_t live_bytes) noexcept {
  const std::uint64_t hash = std::max<std::uint64_t>(mixed_bits(bytes + mixed_bits(live_bytes / live_unit_bytes)), 1);
  if ((hash & skipped_bits_) != 0) return;
  std::uint64_t& place = place_of(hash);
  if (place != hash && repeats()) requests_ = std::min(requests_, kept_passes * used_);
  ++requests_;
  if (place == hash) return;
  place = hash;
  latest_new_ = requests_;
  if (++used_ > places / 2) forget_half();
}

// The place of the hash, or the free one where it belongs. The table is never full. The upper bits choose the first
// place, because the lower ones are 0 in every hash once half are skipped.
std::uint64_t& repetition::place_of(std::uint64_t hash) noexcept {
  std::size_t k = hash >> 32;
  while (seen_[k % places] != 0 && seen_[k % places] != hash) ++k;
  return seen_[k % places];
}

void repetition::forget_half() noexcept {
  const auto all = seen_;
  seen_.fill(0);
  used_ = 0;
  skipped_bits_ = 2 * skipped_bits_ + 1;
  requests_ /= 2;
  latest_new_ /= 2;
  for (const std::uint64_t hash : all) {
    if (hash == 0 || (hash & skipped_bits_) != 0) continue;
    place_of(hash) = hash;
    ++used_;
  }
}

}  // namespace gpumem
