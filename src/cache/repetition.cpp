#include "repetition.hpp"

#include <algorithm>

#include "mixed_bits.hpp"

namespace gpumem {

void repetition::count(std::uint64_t bytes, std::uint64_t live_bytes) noexcept {
  const std::size_t kind = bytes >= large_bytes ? 1 : 0;
  const std::uint64_t after_bytes = latest_ordered_;
  if (bytes >= ordered_bytes) latest_ordered_ = bytes;
  const std::uint64_t alone = mixed_bits(bytes + mixed_bits(live_bytes / live_unit_bytes));
  constexpr std::uint64_t shared = UINT32_MAX;  // no hash is 0, because its upper half never is
  const auto hash_of = [&](std::uint64_t mixed, std::uint64_t order) {
    const std::uint64_t upper = std::max<std::uint64_t>(mixed & ~shared, shared + 1);
    return upper + (alone & shared & ~(large_bit + ordered_bit)) + order + kind * large_bit;
  };
  const std::uint64_t hash = hash_of(alone, 0);
  if ((hash & skipped_bits_[kind]) != 0) return;
  const bool repeated = repeats();
  const bool is_new = remember(hash);
  // What the program began with comes again after the end of its step.
  const std::uint64_t at_beginning = hash_of(mixed_bits(alone), ordered_bit);
  const bool began_so = place_of(at_beginning) == at_beginning;
  const bool is_new_there = remember(hash_of(mixed_bits(alone + after_bytes), ordered_bit)) && !began_so;
  ++requests_[kind];
  if (repeated ? !is_new : !is_new_there) return;
  if (repeated) {
    for (const std::size_t k : {0U, 1U}) requests_[k] = std::min(requests_[k], kept_passes * used_[k] / 2);
  }
  latest_new_ = requests_;
}

bool repetition::remember(std::uint64_t hash) noexcept {
  std::uint64_t& place = place_of(hash);
  if (place == hash) return false;
  place = hash;
  ++used_[hash & large_bit];
  if (used_[0] + used_[1] > places / 2) forget_half(used_[0] > places / 8 ? 0 : 1);
  return true;
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
  skipped_bits_[kind] = 2 * skipped_bits_[kind] + sampled_bit;
  requests_[kind] /= 2;
  latest_new_[kind] /= 2;
  for (const std::uint64_t hash : all) {
    if (hash == 0 || (hash & skipped_bits_[hash & large_bit]) != 0) continue;
    place_of(hash) = hash;
    ++used_[hash & large_bit];
  }
}

}  // namespace gpumem
