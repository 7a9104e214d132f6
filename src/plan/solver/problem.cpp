/// Checks and bounds of a static problem.
#include "problem.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <utility>

#include "bits.hpp"

namespace gpumem::plan {
namespace {

constexpr std::uint64_t largest_sum = std::uint64_t{1} << 62;

status bad(const buffer& buffer, std::string_view reason) {
  return {errc::invalid_argument, fmt::format("buffer {}: {}", buffer.id, reason)};
}

/// Calls `seen` with each interval between the first and the last moment, in order, and the bytes alive in it.
template <typename Seen>
void for_each_load(const problem& buffers, Seen seen) {
  std::vector<std::pair<std::uint64_t, std::uint32_t>> starts;
  std::vector<std::pair<std::uint64_t, std::uint32_t>> ends;
  for (std::uint32_t i = 0; i < buffers.size(); ++i) {
    starts.emplace_back(buffers[i].lower, i);
    ends.emplace_back(buffers[i].upper, i);
  }
  std::sort(starts.begin(), starts.end());
  std::sort(ends.begin(), ends.end());
  std::uint64_t alive = 0;
  std::size_t started = 0;
  for (std::size_t ended = 0; ended < ends.size();) {
    const std::uint64_t moment =
        started < starts.size() ? std::min(starts[started].first, ends[ended].first) : ends[ended].first;
    for (; ended < ends.size() && ends[ended].first == moment; ++ended) alive -= buffers[ends[ended].second].size;
    for (; started < starts.size() && starts[started].first == moment; ++started)
      alive += buffers[starts[started].second].size;
    if (ended == ends.size()) return;
    const std::uint64_t next =
        started < starts.size() ? std::min(starts[started].first, ends[ended].first) : ends[ended].first;
    seen(window{moment, next}, alive);
  }
}

}  // namespace

status check(const problem& buffers) {
  std::uint64_t sum = 0;
  std::vector<std::uint64_t> ids;
  ids.reserve(buffers.size());
  for (const buffer& each : buffers) {
    if (each.lower >= each.upper) {
      return bad(each, fmt::format("lower {} is not below upper {}", each.lower, each.upper));
    }
    if (each.size == 0) return bad(each, "size is 0, expected at least 1");
    if (!is_power_of_two(each.alignment)) {
      return bad(each, fmt::format("alignment {} is not a power of two", each.alignment));
    }
    const auto padded = checked_round_up(each.size, each.alignment);
    if (!padded || *padded > largest_sum - sum) return bad(each, "the sizes up to here sum to more than 2^62");
    sum += *padded;
    ids.push_back(each.id);
  }
  std::sort(ids.begin(), ids.end());
  const auto twice = std::adjacent_find(ids.begin(), ids.end());
  if (twice != ids.end()) return {errc::invalid_argument, fmt::format("buffer {}: this id occurs twice", *twice)};
  return {};
}

load peak_load(const problem& buffers) {
  load peak;
  for_each_load(buffers, [&](const window& when, std::uint64_t alive) {
    if (alive > peak.bytes) peak = {alive, when.lower};
  });
  return peak;
}

window busy_window(const problem& buffers, std::uint64_t bytes) {
  window busy{.lower = UINT64_MAX, .upper = 0};
  for_each_load(buffers, [&](const window& when, std::uint64_t alive) {
    if (alive < bytes) return;
    busy.lower = std::min(busy.lower, when.lower);
    busy.upper = when.upper;
  });
  return busy;
}

std::uint64_t height_unit(const problem& buffers) {
  std::uint64_t unit = 0;
  for (const buffer& each : buffers) {
    unit = std::gcd(unit, each.size);
    if (each.alignment > 1) unit = std::gcd(unit, each.alignment);
  }
  return unit;
}

status may_fit(const problem& buffers, std::uint64_t capacity) {
  for (const buffer& each : buffers) {
    if (each.size > capacity) {
      return {errc::out_of_memory,
              fmt::format("buffer {} of {} bytes is larger than the capacity of {}", each.id, each.size, capacity)};
    }
  }
  const load peak = peak_load(buffers);
  if (peak.bytes <= capacity) return {};
  return {errc::out_of_memory, fmt::format("at time {} buffers of {} bytes are alive, more than the capacity of {}",
                                           peak.time, peak.bytes, capacity)};
}

std::uint64_t height(const problem& buffers, const placement& offsets) {
  std::uint64_t highest = 0;
  for (std::size_t i = 0; i < buffers.size(); ++i) highest = std::max(highest, offsets[i] + buffers[i].size);
  return highest;
}

}  // namespace gpumem::plan
