// PyTorch's statistics: counters with a peak. Some are counted at each call, others are sampled from the memory.
#pragma once

#include <c10/core/CachingDeviceAllocator.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <map>
#include <string>

#include "memory_source.hpp"

using device_stats = c10::CachingDeviceAllocator::DeviceStats;
using stat = c10::CachingAllocator::Stat;

// gpumem uses the same segments for small and large blocks, and reports them as PyTorch's large pool.
inline constexpr std::size_t every_pool = static_cast<std::size_t>(c10::CachingAllocator::StatType::AGGREGATE);
inline constexpr std::size_t large_pool = static_cast<std::size_t>(c10::CachingAllocator::StatType::LARGE_POOL);
inline constexpr std::array stat_types{every_pool, large_pool};

inline void observe(stat& counter, std::size_t sample) {
  const auto value = static_cast<std::int64_t>(sample);
  if (value >= counter.current)
    counter.increase(static_cast<std::size_t>(value - counter.current));
  else
    counter.decrease(static_cast<std::size_t>(counter.current - value));
}

/// A block is active while the program holds it, and then until the streams that use it are done.
inline stat with_pending(stat held, std::int64_t peak, std::size_t pending) {
  held.current += static_cast<std::int64_t>(pending);
  held.freed = std::max<std::int64_t>(0, held.freed - static_cast<std::int64_t>(pending));
  held.peak = std::max({held.peak, peak, held.current});
  return held;
}

template <typename Stats>
void observe_pools(Stats& stats, std::map<pool_id, std::size_t> bytes) {
  if constexpr (requires { stats.reserved_bytes_by_private_pools; }) {
    for (const auto& [pool, unused] : stats.reserved_bytes_by_private_pools) bytes.try_emplace(pool, 0);
    for (const auto& [pool, now] : bytes) {
      for (const std::size_t type : stat_types) observe(stats.reserved_bytes_by_private_pools[pool][type], now);
    }
  }
}

template <typename Stats, typename Call>
void each_stat(Stats& stats, const Call& call) {
  for (const std::size_t type : stat_types) {
    for (auto* const values :
         {&stats.allocation, &stats.segment, &stats.active, &stats.inactive_split, &stats.allocated_bytes,
          &stats.reserved_bytes, &stats.active_bytes, &stats.inactive_split_bytes, &stats.requested_bytes}) {
      call((*values)[type]);
    }
    if constexpr (requires { stats.reserved_bytes_by_private_pools; }) {
      for (auto& [unused, values] : stats.reserved_bytes_by_private_pools) call(values[type]);
    }
  }
}

inline std::string format_size(std::uint64_t bytes) {
  constexpr std::array<const char*, 4> units{"bytes", "KiB", "MiB", "GiB"};
  auto value = static_cast<double>(bytes);
  std::size_t unit = 0;
  for (; unit + 1 < units.size() && value > 1024; ++unit) value /= 1024;
  std::array<char, 64> text{};
  std::snprintf(text.data(), text.size(), unit == 0 ? "%.0f %s" : "%.2f %s", value, units[unit]);
  return text.data();
}
