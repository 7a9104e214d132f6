// PyTorch's figures of a GPU: statistics, peaks, the memory map, free and total memory.
#pragma once

#include <c10/core/AllocatorConfig.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>

#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include "snapshot.hpp"
#include "state.hpp"

class device_figures {
  using guard = adapter_state::guard;

 public:
  explicit device_figures(adapter_state& state) : state_{state} {}

  static gpumem::statistics of(const device_state& state) {
    const gpumem::result<gpumem::statistics> s = memory().stats(state.logical);
    TORCH_CHECK(s.ok(), "gpumem: ", s.why().message());
    return *s;
  }
  memory_totals totals(const device_state& state, const gpumem::statistics& statistics) const {
    memory_totals counted;
    state.source->count(counted, no_pool);
    counted.fenced_bytes += statistics.fenced_bytes;
    for (const auto& [pool, source] : sources_of(state)) source->count(counted, pool);
    return counted;
  }
  /// All blocks, by a walk.
  memory_map map(const device_state& state) const {
    memory_map all;
    state.source->describe(all, no_pool);
    for (const auto& [pool, source] : sources_of(state)) source->describe(all, pool);
    return all;
  }
  std::vector<caching::SegmentInfo> segment_infos_of(DeviceIndex device) {
    device_state& d = state_.device_of(device);
    const memory_map all = map(d);
    const segment_table::map segments = d.segments.entries();
    const guard lock{state_.mutex};
    return segment_infos(all, device, segments, [&](std::size_t address) {
      const auto found = state_.live_blocks.find(reinterpret_cast<void*>(address));
      return found != state_.live_blocks.end() ? found->second.context : nullptr;
    });
  }

  device_stats statistics(DeviceIndex device) {
    device_state& d = state_.device_of(device);
    const gpumem::statistics sampled = of(d);
    const memory_totals counted = totals(d, sampled);
    const guard lock{state_.mutex};
    return sample(d, sampled, counted);
  }
  void reset_accumulated(DeviceIndex device) {
    device_state& d = state_.device_of(device);
    const gpumem::statistics sampled = of(d);
    const guard lock{state_.mutex};
    each_stat(d.stats, [](stat& each) { each.reset_accumulated(); });
    d.taken_before = sampled.taken_bytes + d.own_taken;
    d.returned_before = sampled.taken_bytes - sampled.reserved_bytes + d.own_returned;
    d.stats.num_ooms = 0;
    d.waits_before = sampled.host_waits;
    d.device_allocs_before = device_allocs(d, sampled);
    d.device_frees_before = device_frees(d, sampled);
  }
  void reset_peaks(DeviceIndex device) {
    device_state& d = state_.device_of(device);
    static_cast<void>(statistics(device));  // sample the figures so that their peaks restart at the current values
    static_cast<void>(memory().reset_peak_reserved(d.logical));
    const guard lock{state_.mutex};
    d.peak_reserved = 0;
    each_stat(d.stats, [](stat& each) { each.reset_peak(); });
  }
  void note_peak(device_state& state) {
    const std::uint64_t reserved = of(state).reserved_bytes + state.own_bytes();
    const guard lock{state_.mutex};
    state.peak_reserved = std::max(state.peak_reserved, reserved);
  }
  /// Updates the sampled figures. Requires the lock.
  static device_stats sample(device_state& state, const gpumem::statistics& sampled, const memory_totals& counted) {
    device_stats& s = state.stats;
    const std::uint64_t reserved_bytes = sampled.reserved_bytes + state.own_bytes();
    const std::uint64_t returned = sampled.taken_bytes - sampled.reserved_bytes + state.own_returned;
    state.peak_reserved = std::max(state.peak_reserved, reserved_bytes);
    for (const std::size_t type : stat_types) {
      s.active[type] = with_pending(s.allocation[type], s.active[type].peak, counted.fenced);
      s.active_bytes[type] = with_pending(s.allocated_bytes[type], s.active_bytes[type].peak, counted.fenced_bytes);
      observe(s.segment[type], counted.pieces);
      observe(s.inactive_split[type], counted.split);
      observe(s.inactive_split_bytes[type], counted.split_bytes);
      stat& reserved = s.reserved_bytes[type];
      reserved.current = static_cast<std::int64_t>(reserved_bytes);
      reserved.peak = static_cast<std::int64_t>(std::max(sampled.peak_reserved_bytes, state.peak_reserved));
      reserved.allocated = static_cast<std::int64_t>(sampled.taken_bytes + state.own_taken - state.taken_before);
      reserved.freed = static_cast<std::int64_t>(returned - state.returned_before);
    }
    observe_pools(s, counted.bytes_by_pool);
    s.max_split_size = static_cast<std::int64_t>(c10::CachingAllocator::AcceleratorAllocatorConfig::max_split_size());
    s.num_sync_all_streams = static_cast<std::int64_t>(sampled.host_waits - state.waits_before);
    s.num_device_alloc = static_cast<std::int64_t>(device_allocs(state, sampled) - state.device_allocs_before);
    s.num_device_free = static_cast<std::int64_t>(device_frees(state, sampled) - state.device_frees_before);
    return s;
  }

  static std::pair<std::size_t, std::size_t> driver_memory(DeviceIndex device) {
    const c10::cuda::CUDAGuard current{device};
    std::size_t free = 0, total = 0;
    C10_CUDA_CHECK(cudaMemGetInfo(&free, &total));
    return {free, total};
  }
  /// Free and total bytes of the GPU for this program: free within the current limit, total within GPUMEM_LIMIT.
  std::pair<std::size_t, std::size_t> limited_memory(DeviceIndex device) {
    const device_state& d = state_.device_of(device);
    const auto [free, total] = driver_memory(device);
    const std::uint64_t held = of(d).reserved_bytes + d.limit.reserved();
    const std::uint64_t limit = d.limit.bytes();
    return {std::min<std::size_t>(free, limit - std::min(limit, held)),
            std::min<std::size_t>(total, d.limit.at_start())};
  }

 private:
  std::vector<std::pair<pool_id, std::shared_ptr<memory_source>>> sources_of(const device_state& state) const {
    const guard lock{state_.mutex};
    return state.pools.sources();
  }
  static std::uint64_t device_allocs(const device_state& state, const gpumem::statistics& sampled) {
    return sampled.grown_segments + sampled.mapped_pages + state.own_allocs;
  }
  static std::uint64_t device_frees(const device_state& state, const gpumem::statistics& sampled) {
    return sampled.returned_segments + sampled.returned_pages + state.own_frees;
  }

  adapter_state& state_;
};
