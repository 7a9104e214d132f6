#include "large_requests.hpp"

#include <algorithm>
#include <cmath>

#include "bits.hpp"

namespace gpumem {
namespace {

constexpr std::uint64_t granularity = 512;

/// Whole blocks, 0 where there is no such size.
std::uint64_t scaled(std::uint64_t bytes, double by) noexcept {
  const double to = static_cast<double>(bytes) * by;
  return to < 0x1p60 ? round_up(static_cast<std::uint64_t>(to), granularity) : 0;
}

std::uint64_t mixed(std::uint64_t hash, std::uint64_t with) noexcept {
  hash = (hash ^ with) * 0x100'0000'01b3ULL;
  return hash ^ (hash >> 31);
}

}  // namespace

large_requests::number large_requests::add(const event& e) {
  if (events_.empty()) {
    by_exact_.resize(remembered);
    by_scaled_.resize(remembered);
    events_.resize(remembered);
  }
  ++count_;
  event& slot = at(count_);
  if (slot.live) live_.erase(slot.begin / granularity);  // so old that its free will not be noted
  slot = e;
  return count_;
}

// Sizes and kinds of the latest, which is a request, and of what came before it.
std::uint64_t large_requests::exact_context() const noexcept {
  std::uint64_t hash = 1;
  for (number n = count_; known(n) && n + context > count_; --n) {
    const event& e = at(n);
    hash = mixed(hash, e.bytes * 2 + (e.of != 0 ? 1 : 0));
  }
  return hash;
}

// The same by the power of two next to what each size is of the latest, and by the ages of what was freed.
std::uint64_t large_requests::scaled_context() const noexcept {
  std::uint64_t hash = 2;
  const auto unit = static_cast<double>(at(count_).bytes);
  for (number n = count_; known(n) && n + context > count_; --n) {
    const event& e = at(n);
    const auto size = static_cast<std::int64_t>(std::floor(std::log2(static_cast<double>(e.bytes) / unit) + 0.5));
    hash = mixed(hash, e.of != 0 ? (n - e.of) * 2 + 1 : static_cast<std::uint64_t>(size) * 2);
  }
  return hash;
}

// Whoever had that context last; from now on it is `n`.
large_requests::number large_requests::replace(std::vector<seen>* table, std::uint64_t hash, number n) noexcept {
  seen& slot = (*table)[hash % remembered];
  const number before = slot.hash == hash ? slot.at : 0;
  slot = {hash, n};
  return before;
}

large_requests::number large_requests::requested(std::uint64_t bytes) {
  const number n = add({.bytes = bytes});
  const number exact = replace(&by_exact_, exact_context(), n);
  const number similar = replace(&by_scaled_, scaled_context(), n);
  const number before = known(exact) ? exact : similar;
  if (known(before)) {
    at(n).repeats = before;
    at(before).repeated_by = n;
  }
  return n;
}

void large_requests::placed(number n, std::uint64_t begin) {
  freed(begin);  // never, unless a free went unnoticed
  if (!known(n)) return;
  live_[begin / granularity] = static_cast<std::uint32_t>(n % remembered);
  at(n).begin = begin;
  at(n).live = true;
}

void large_requests::freed(std::uint64_t begin) noexcept {
  const auto live = live_.find(begin / granularity);
  if (live == live_.end()) return;
  const std::uint32_t slot = live->second;
  live_.erase(live);
  event& request = events_[slot];
  request.live = false;
  const number n = count_ - (count_ - slot) % remembered;  // the latest with that place
  add({.bytes = request.bytes, .of = n});
}

// True where `n` asked for that size, and its block is live: or, being asked for now, has no place yet.
bool large_requests::may_be_freed(number n, number now, std::uint64_t bytes,
                                  const std::vector<number>& gone) const noexcept {
  if (!known(n) || n > now) return false;
  const event& e = at(n);
  const std::uint64_t off = e.bytes > bytes ? e.bytes - bytes : bytes - e.bytes;
  return e.of == 0 && (e.live || n == now) && off <= bytes / same_size_part &&
         std::find(gone.begin(), gone.end(), n) == gone.end();
}

// The block that came in the place of what was freed then, or else one of its size and about its age; 0 where none is.
large_requests::number large_requests::freed_like(number then, number same_age, number now, std::uint64_t bytes,
                                                  const std::vector<number>& gone) const noexcept {
  if (known(then) && may_be_freed(at(then).repeated_by, now, bytes, gone)) return at(then).repeated_by;
  for (number off = 0; off <= nearest_ages; ++off) {
    if (same_age > off && may_be_freed(same_age - off, now, bytes, gone)) return same_age - off;
    if (may_be_freed(same_age + off, now, bytes, gone)) return same_age + off;
  }
  return 0;
}

std::vector<expected_step> large_requests::expected_after(number n, std::uint32_t most) const {
  std::vector<expected_step> steps;
  if (!known(n) || !known(at(n).repeats)) return steps;
  const number before = at(n).repeats;
  const number period = n - before;
  const double scale = static_cast<double>(at(n).bytes) / static_cast<double>(at(before).bytes);
  std::vector<number> gone;
  steps.reserve(most);
  for (std::uint32_t k = 0; k < most; ++k) {
    // What came `k + 1` after the request before; from now on it goes round.
    const event& then = at(before + 1 + k % period);
    expected_step& next = steps.emplace_back();
    next.bytes = scaled(then.bytes, scale);
    if (next.bytes == 0) continue;
    if (then.of == 0) {
      next.is = expected_step::kind::request;
      if (next.bytes == then.bytes) next.lay = {then.begin, known(then.repeats) ? at(then.repeats).begin : 0};
      continue;
    }
    const number age = before + 1 + k % period - then.of;
    if (k >= age) {
      const expected_step& asked = steps[k - age];
      if (asked.is != expected_step::kind::request) continue;
      next.is = expected_step::kind::free_expected;
      next.step = static_cast<std::uint32_t>(k - age);
      continue;
    }
    const number of = freed_like(then.of, n + 1 + k - age, n, next.bytes, gone);
    if (of == 0) continue;
    gone.push_back(of);
    next.is = of == n ? expected_step::kind::free_requested : expected_step::kind::free_live;
    next.begin = at(of).begin;
    next.bytes = at(of).bytes;
  }
  return steps;
}

std::vector<std::uint64_t> large_requests::earlier_places(number n) const {
  std::vector<std::uint64_t> begins;
  if (!known(n)) return begins;
  const std::uint64_t bytes = at(n).bytes;
  for (n = at(n).repeats; known(n) && begins.size() < earlier_looked_at && at(n).bytes == bytes; n = at(n).repeats) {
    if (at(n).begin != 0) begins.push_back(at(n).begin);
  }
  return begins;
}

std::uint64_t large_requests::metadata_bytes() const noexcept {
  return events_.capacity() * sizeof(event) + (by_exact_.capacity() + by_scaled_.capacity()) * sizeof(seen) +
         live_.size() * 40;  // about: a node and its bucket
}

}  // namespace gpumem
