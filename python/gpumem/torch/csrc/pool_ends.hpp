// Uses of pools, and their ends: what `releasePool`, `~MemPool`, `emptyCache` and requests that find no memory do to
// them. pools.hpp has the rules.
#pragma once

#include <algorithm>
#include <memory>
#include <optional>
#include <set>
#include <thread>
#include <utility>
#include <vector>

#include "figures.hpp"
#include "segment_events.hpp"
#include "state.hpp"

/// The pool that this thread released last, until its next call shows which kind it was (private_pool::released_by).
inline thread_local std::optional<std::pair<DeviceIndex, MempoolId_t>> unsettled_release;

class pool_ends {
  using guard = adapter_state::guard;

 public:
  explicit pool_ends(adapter_state& state) : state_{state} {}

  /// A new MemPool, or a graph that keeps a pool.
  void add_use(DeviceIndex device, const MempoolId_t& pool, std::shared_ptr<native::CUDAAllocator> own) {
    device_state& d = state_.device_of(device);
    const guard lock{state_.mutex};
    const bool is_new = d.pools.find(pool) == nullptr;
    private_pool& p = d.pools[pool];
    ++p.uses;
    if (!is_new) return;
    p.is_mem_pool = p.object_alive = true;
    p.is_own = own != nullptr;
    if (p.is_own) {
      p.source =
          std::make_shared<own_memory>(device, std::make_unique<pool_supplier>(state_, device, pool, std::move(own)));
    }
  }
  // A MemPool keeps its memory on GPUs other than its own until it ends, or until that memory is idle and emptyCache
  // runs.
  void release(DeviceIndex device, const MempoolId_t& pool) {
    device_state& d = state_.device_of(device);
    bool with_the_others = false;
    {
      const guard lock{state_.mutex};
      private_pool* const found = d.pools.find(pool);
      TORCH_CHECK(found != nullptr, "releasePool: there is no pool (", pool.first, ", ", pool.second, ")");
      if (--found->uses > 0) {
        found->released_by.insert(std::this_thread::get_id());
        unsettled_release = {device, pool};
        return;
      }
      with_the_others = found->is_mem_pool;
      if (!with_the_others && std::ranges::any_of(state_.devices, [&](device_state& candidate) {
            const private_pool* const same = candidate.pools.find(pool);
            return same != nullptr && same->is_mem_pool;
          })) {
        return;
      }
    }
    end(device, pool);
    for (std::size_t i = 0; with_the_others && i < state_.devices.size(); ++i) end(static_cast<DeviceIndex>(i), pool);
  }
  /// A request of this thread right after a release shows that a graph was released: a MemPool would call `emptyCache`.
  void settle_release() {
    if (!unsettled_release) return;
    const auto [device, pool] = *std::exchange(unsettled_release, std::nullopt);
    const guard lock{state_.mutex};
    private_pool* const found = state_.device_of(device).pools.find(pool);
    if (found != nullptr) found->released_by.erase(std::this_thread::get_id());
  }
  /// The MemPool was destroyed: returns its memory, unless a graph still keeps the pool.
  void empty_ended(DeviceIndex device, const MempoolId_t& pool) {
    device_state& d = state_.devices[static_cast<std::size_t>(device)];
    std::uint64_t idle = 0;
    {
      const guard lock{state_.mutex};
      unsettled_release.reset();
      if (private_pool* const found = d.pools.find(pool)) {
        found->object_alive = false;
        found->released_by.erase(std::this_thread::get_id());
      }
      if (const auto found = d.idle_at_end.find(pool); found != d.idle_at_end.end()) {
        idle = found->second;
        d.idle_at_end.erase(found);
      }
    }
    give_back_ended(d);
    if (idle != 0) static_cast<void>(memory().trim(d.logical, idle));
  }
  /// `emptyCache` outside every pool.
  void empty_all(DeviceIndex device) {
    device_state& d = state_.devices[static_cast<std::size_t>(device)];
    close_unused(device);
    give_back_ended(d);
    static_cast<void>(memory().trim(d.logical));
  }
  /// Moves idle memory out of the pools, for all requests; true if there was any.
  bool give_back_idle(device_state& state) {
    std::vector<std::shared_ptr<memory_source>> sources;
    {
      const guard lock{state_.mutex};
      sources = state.pools.sources_to_give_back();
    }
    bool any = false;
    for (const auto& each : sources) any = each->give_back() || any;
    return any;
  }

 private:
  /// Ends a pool without uses. Its gpumem memory then serves all requests; own memory stays until it may return to its
  /// allocator. The statistics keep the pool's last figures.
  void end(DeviceIndex device, const MempoolId_t& pool) {
    device_state& d = state_.devices[static_cast<std::size_t>(device)];
    if (in_forked_child || d.logical < 0) return;
    {
      const guard lock{state_.mutex};
      const private_pool* const found = d.pools.find(pool);
      if (found == nullptr || found->uses > 0) return;
    }
    const device_figures figures{state_};
    const memory_map map = figures.map(d);
    const gpumem::statistics statistics = device_figures::of(d);
    const memory_totals counted = figures.totals(d, statistics);
    std::shared_ptr<memory_source> source;
    {
      const guard lock{state_.mutex};
      static_cast<void>(device_figures::sample(d, statistics, counted));
      const private_pool* const found = d.pools.find(pool);
      if (found != nullptr && found->is_mem_pool && !found->is_own) d.idle_at_end[pool] = bytes_to_trim(map, pool);
      source = d.pools.end_pool(pool);
    }
    if (source) source->close();
  }
  /// Ends pools on this GPU that belong to MemPools of other GPUs and have no live blocks.
  void close_unused(DeviceIndex device) {
    std::set<MempoolId_t> unused;
    {
      const guard lock{state_.mutex};
      for (const auto& [id, pool] : state_.devices[static_cast<std::size_t>(device)].pools) {
        if (pool.uses <= 0) unused.insert(id);
      }
      if (unused.empty()) return;
      for (const auto& [at, held] : state_.live_blocks) {
        if (held.device == device) unused.erase(held.pool);
      }
    }
    for (const MempoolId_t& id : unused) end(device, id);
  }
  /// Returns own memory of ended pools, unless a capture may be open: waiting for the GPU would invalidate it.
  void give_back_ended(device_state& state) {
    std::vector<std::shared_ptr<memory_source>> ended;
    {
      const guard lock{state_.mutex};
      ended = state.pools.ended_sources();
    }
    for (const auto& each : ended) static_cast<void>(each->give_back());
    const guard lock{state_.mutex};
    state.pools.forget_empty();
  }

  adapter_state& state_;
};
