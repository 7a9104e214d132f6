/// Period by the Z function of the reversed sequence; lifetimes in operations.
#include "step.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <map>
#include <unordered_map>

#include "assign_or_return.hpp"
#include "bits.hpp"

namespace gpumem::plan {
namespace {

/// For each position, the number of elements backwards from it that equal those backwards from the end (Gusfield's Z,
/// reversed).
std::vector<std::size_t> repeats(std::vector<std::uint64_t> keys) {
  std::reverse(keys.begin(), keys.end());
  std::vector<std::size_t> z(keys.size());
  std::size_t left = 0;
  std::size_t right = 0;
  for (std::size_t i = 1; i < keys.size(); ++i) {
    if (i < right) z[i] = std::min(right - i, z[i - left]);
    while (i + z[i] < keys.size() && keys[z[i]] == keys[i + z[i]]) ++z[i];
    if (i + z[i] > right) {
      left = i;
      right = i + z[i];
    }
  }
  return z;
}

struct lifetime {
  planned_allocation allocation;
  std::uint64_t lower = 0;
  std::uint64_t upper = UINT64_MAX;  ///< of a block that is never freed
};

result<std::vector<lifetime>> lifetimes_of(const std::vector<recorded_op>& recorded) {
  std::vector<lifetime> found;
  std::unordered_map<std::uint32_t, std::size_t> live;
  std::unordered_map<std::uint16_t, std::uint16_t> streams;  // renumbered in order of first appearance
  for (std::size_t time = 0; time < recorded.size(); ++time) {
    const recorded_op& op = recorded[time];
    if (!op.free) {
      const auto rounded = checked_round_up(op.bytes, granule_bytes);
      if (op.bytes == 0 || !rounded || !live.emplace(op.block, found.size()).second) {
        return status{errc::invalid_argument,
                      fmt::format("operation {}: an allocation of {} bytes as block {}, expected 1 to 2^62 bytes and a "
                                  "block that is not live",
                                  time, op.bytes, op.block)};
      }
      const std::uint16_t stream = streams.emplace(op.stream, static_cast<std::uint16_t>(streams.size())).first->second;
      found.push_back({{.bytes = *rounded, .offset = 0, .stream = stream}, time});
      continue;
    }
    const auto entry = live.find(op.block);
    if (entry == live.end()) {
      return status{errc::invalid_argument,
                    fmt::format("operation {}: block {} is freed and not live", time, op.block)};
    }
    found[entry->second].upper = time;
    live.erase(entry);
  }
  if (found.empty()) return status{errc::invalid_argument, "nothing is allocated, expected at least one allocation"};
  return found;
}

std::uint64_t request_key(const planned_allocation& allocation) {
  return (allocation.bytes << 16U) ^ allocation.stream;
}

constexpr std::size_t most_periods = 4;

/// Returns the number of periods in a step such that each block is freed before its successor is allocated: two for a
/// pair of alternating buffers.
std::size_t periods_in_step(const std::vector<lifetime>& all, std::size_t period) {
  std::vector<std::uint64_t> times;
  for (const lifetime& each : all) times.push_back(each.lower);
  std::size_t most = 1;
  for (std::size_t i = all.size() / 2; i < all.size(); ++i) {
    if (all[i].upper == UINT64_MAX) continue;
    const auto after = std::upper_bound(times.begin(), times.end(), all[i].upper) - times.begin();
    const std::size_t spans = (static_cast<std::size_t>(after) - i - 1) / period + 1;
    if (spans <= most_periods && 2 * spans * period <= all.size()) most = std::max(most, spans);
  }
  return most;
}

/// Returns allocations [0, end) of the recording as a problem; those from `begin` on repeat.
problem step_problem(const std::vector<lifetime>& all, std::size_t begin, std::size_t end, std::uint64_t end_time) {
  problem buffers;
  for (std::size_t i = 0; i < end; ++i) {
    const bool comes_back = all[i].upper >= end_time && i >= begin && end < all.size();
    buffers.push_back({.id = i,
                       .lower = comes_back ? all[begin].lower : all[i].lower,
                       .upper = std::min(all[i].upper, end_time),
                       .size = all[i].allocation.bytes,
                       .alignment = granule_bytes});
  }
  return buffers;
}

/// The number of tried ends of the step, spread evenly over a period.
constexpr std::size_t ends_tried = 48;
/// A step is rejected if blocks that outlive it raise its need above the recording's peak by more than this factor.
constexpr double most_above_peak = 1.001;

/// The accepted height of a plan with separate offsets per stream, relative to a shared one. On the recorded sweep's
/// traces with several streams, 1.2 gives the highest mean utilization among 1.05, 1.1, 1.15, 1.2, 1.25, 1.3 and no
/// bound.
constexpr double most_above_shared = 1.2;

/// Returns `options` with a share of its time and steps.
solve_options with_share(const solve_options& options, double share) {
  solve_options scaled = options;
  scaled.time_limit =
      std::chrono::milliseconds{static_cast<std::int64_t>(static_cast<double>(options.time_limit.count()) * share)};
  if (options.most_steps != UINT64_MAX) {
    scaled.most_steps = static_cast<std::uint64_t>(static_cast<double>(options.most_steps) * share);
  }
  return scaled;
}

/// Places each stream's blocks separately and stacks the results. Requires `streams` > 1.
result<solution> solve_apart(const step& step, std::size_t streams, const solve_options& options) {
  solution all;
  all.offsets.resize(step.buffers.size());
  for (std::size_t stream = 0; stream < streams; ++stream) {
    problem part;
    std::vector<std::size_t> indices;
    for (std::size_t i = 0; i < step.buffers.size(); ++i) {
      if (step.allocations[i].stream != stream) continue;
      part.push_back(step.buffers[i]);
      indices.push_back(i);
    }
    const double share = static_cast<double>(part.size()) / static_cast<double>(step.buffers.size());
    ASSIGN_OR_RETURN(const auto placed, solve(part, with_share(options, share)));
    for (std::size_t k = 0; k < indices.size(); ++k) all.offsets[indices[k]] = all.height + placed.offsets[k];
    all.height += placed.height;
    all.took += placed.took;
  }
  return all;
}

result<solution> solve_step(const step& step, const solve_options& options, stream_reuse reuse) {
  std::size_t streams = 0;
  for (const planned_allocation& each : step.allocations) streams = std::max<std::size_t>(streams, each.stream + 1U);
  if (streams == 1 || reuse != stream_reuse::poll) return solve(step.buffers, options);
  const solve_options half = with_share(options, 0.5);
  result<solution> shared = solve(step.buffers, half);
  if (!shared) return shared;
  solve_options no_capacity = half;
  no_capacity.capacity = 0;
  result<solution> apart = solve_apart(step, streams, no_capacity);
  if (!apart) return apart;
  shared->took += apart->took;
  const bool fits = options.capacity == 0 || apart->height <= options.capacity;
  if (fits && static_cast<double>(apart->height) <= static_cast<double>(shared->height) * most_above_shared) {
    shared->offsets = std::move(apart->offsets);
    shared->height = apart->height;
  }
  return shared;
}

}  // namespace

std::optional<std::size_t> period_of(const std::vector<std::uint64_t>& sequence) {
  const std::vector<std::size_t> z = repeats(sequence);
  for (std::size_t period = 1; period * 2 <= sequence.size(); ++period) {
    if (z[period] >= period && 2 * (period + z[period]) >= sequence.size()) return period;
  }
  return std::nullopt;
}

result<step> step_of(const std::vector<recorded_op>& recorded) {
  ASSIGN_OR_RETURN(auto all, lifetimes_of(recorded));
  std::vector<std::uint64_t> keys;
  for (const lifetime& each : all) keys.push_back(request_key(each.allocation));
  std::optional<std::size_t> period = period_of(keys);
  if (period) *period *= periods_in_step(all, *period);

  step found;
  const std::uint64_t whole_end = recorded.size() + 1;
  found.buffers = step_problem(all, 0, all.size(), whole_end);
  std::size_t begin = period ? all.size() - *period : 0;  // without a whole further period, the last one repeats
  if (period) {
    // Choose a step with a whole step after it, so that its frees are known.
    const auto most = static_cast<std::uint64_t>(static_cast<double>(peak_load(found.buffers).bytes) * most_above_peak);
    const std::size_t last = all.size() - *period;
    const std::size_t room = std::min(*period, last - *period + 1);
    const std::size_t stride = std::max<std::size_t>(room / ends_tried, 1);
    std::uint64_t best = most + 1;
    for (std::size_t back = 0; back < room; back += stride) {
      const std::size_t end = last - back;
      problem candidate = step_problem(all, end - *period, end, all[end].lower);
      const std::uint64_t peak = peak_load(candidate).bytes;
      if (peak >= best) continue;
      best = peak;
      begin = end - *period;
      found.buffers = std::move(candidate);
    }
  }
  for (std::size_t i = 0; i < found.buffers.size(); ++i) found.allocations.push_back(all[i].allocation);
  found.repeat_from = static_cast<std::uint32_t>(begin);
  return found;
}

result<step_plan> make_plan(const std::vector<recorded_op>& recorded, const solve_options& options, solution* solved,
                            stream_reuse reuse) {
  ASSIGN_OR_RETURN(auto found, step_of(recorded));
  ASSIGN_OR_RETURN(auto places, solve_step(found, options, reuse));
  step_plan made;
  made.allocations = std::move(found.allocations);
  for (std::size_t i = 0; i < made.allocations.size(); ++i) made.allocations[i].offset = places.offsets[i];
  made.repeat_from = found.repeat_from;
  made.height_bytes = places.height;
  made.peak_bytes = places.peak.bytes;
  made.lower_bound_bytes = places.lower_bound;
  if (solved != nullptr) *solved = std::move(places);
  return made;
}

std::vector<bool> changes_stream(const step_plan& step) {
  const std::vector<planned_allocation>& all = step.allocations;
  std::vector<bool> found(all.size());
  std::map<std::uint64_t, std::size_t> latest;  // range from each key to the next: the latest allocation placed there
  const std::size_t nobody = all.size();
  latest.emplace(0, nobody);
  const auto cut_at = [&](std::uint64_t offset) {
    const auto entry = latest.lower_bound(offset);
    return entry != latest.end() && entry->first == offset
               ? entry
               : latest.emplace_hint(entry, offset, std::prev(entry)->second);
  };
  const auto place = [&](std::size_t index) {
    const auto begin = cut_at(all[index].offset);
    const auto end = cut_at(all[index].offset + all[index].bytes);
    for (auto entry = begin; entry != end; ++entry) {
      if (entry->second != nobody && all[entry->second].stream != all[index].stream) found[entry->second] = true;
    }
    latest.erase(std::next(begin), end);
    begin->second = index;
  };
  for (std::size_t i = 0; i < all.size(); ++i) place(i);
  for (std::size_t i = step.repeat_from; i < all.size(); ++i) place(i);
  return found;
}

std::uint64_t fingerprint(const std::vector<planned_allocation>& allocations, std::uint32_t repeat_from) {
  std::uint64_t hash = 0xcbf29ce484222325U;  // FNV-1a
  const auto mix = [&](std::uint64_t value) {
    for (unsigned shift = 0; shift < 64; shift += 8) hash = (hash ^ ((value >> shift) & 0xffU)) * 0x100000001b3U;
  };
  mix(repeat_from);
  for (const planned_allocation& each : allocations) {
    mix(each.bytes);
    mix(each.stream);
  }
  return hash;
}

}  // namespace gpumem::plan
