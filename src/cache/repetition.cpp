#include "repetition.hpp"

#include <algorithm>

#include "mixed_bits.hpp"

namespace gpumem {

void repetition::count(std::uint64_t bytes, std::uint64_t live_bytes) noexcept {
  const std::size_t kind = bytes >= large_bytes ? 1 : 0;
  const std::uint64_t after_bytes = latest_ordered_;
  if (bytes >= ordered_bytes) latest_ordered_ = bytes;
  // The lowest bit names the kind; no hash is 0.
  const auto hash_after = [&](std::uint64_t before) {
    const std::uint64_t mixed = mixed_bits(bytes + mixed_bits(live_bytes / live_unit_bytes + mixed_bits(before)));
    return std::max<std::uint64_t>(mixed / 2 * 2, 2) + kind;
  };
  // The first requests of a program come again after the last one of its step.
  const std::uint64_t at_beginning = hash_after(0);
  const std::uint64_t hash = place_of(at_beginning) == at_beginning ? at_beginning : hash_after(after_bytes);
  if ((hash & skipped_bits_[kind]) != 0) return;
  std::uint64_t& place = place_of(hash);
  if (place != hash && repeats()) {
    for (const std::size_t k : {0U, 1U}) requests_[k] = std::min(requests_[k], kept_passes * used_[k]);
  }
  ++requests_[kind];
  if (place == hash) return;
  place = hash;
  latest_new_ = requests_;
  ++used_[kind];
  if (used_[0] + used_[1] > places / 2) forget_half(used_[0] > places / 8 ? 0 : 1);
}

// The place of the hash, or the free one where it belongs. The table is never full. The upper bits choose the first
// place, because the lower ones are 0 in every hash once half are skipped.
std::uint64_t& repetition::place_of(std::uint64_t hash) noexcept {
  std::size_t k = hash >> 32;
  while (seen_[k % places] != 0 && seen_[k % places] != hash) ++k;
  return seen_[k % places];
}

void repetition::forget_half(std::size_t kind) noexcept {
  const auto all = seen_;
  seen_.fill(0);
  used_ = {};
  skipped_bits_[kind] = 2 * skipped_bits_[kind] + 2;
  requests_[kind] /= 2;
  latest_new_[kind] /= 2;
  for (const std::uint64_t hash : all) {
    if (hash == 0 || (hash & skipped_bits_[hash % 2]) != 0) continue;
    place_of(hash) = hash;
    ++used_[hash % 2];
  }
}

}  // namespace gpumem
