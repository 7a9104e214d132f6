// State that the parts of the adapter share: the GPUs, the live blocks, and the lock on them.
//
// A memory_source manages the memory: addresses, stream order, reserved bytes. `live_blocks` holds the properties of
// each tensor's block that PyTorch queries: its requested size, its allocation frames, its MemPool. A block is in it
// exactly while the program holds the block. Under `mutex` no part calls the driver, the history or a source.
#pragma once

#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/util/flat_hash_map.h>

#include <atomic>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

#include "history.hpp"
#include "memory_source.hpp"
#include "own_blocks.hpp"
#include "pools.hpp"
#include "segments.hpp"
#include "shared_limit.hpp"
#include "statistics.hpp"

using c10::DeviceIndex;
using c10::MempoolId_t;

static_assert(std::is_same_v<MempoolId_t, pool_id>);

template <typename Allocator>
concept tells_captures = requires(Allocator& a) {
  a.markCaptureBegin(DeviceIndex{0});
};
inline constexpr capture_news captures_of_torch =
    tells_captures<native::CUDAAllocator> ? capture_news::told : capture_news::not_told;

/// CUDA does not work in a process that was forked after the first use of a GPU. Its inherited tensors are only
/// forgotten.
inline bool in_forked_child = false;

/// A live block's properties that PyTorch queries.
struct held_block {
  std::size_t requested = 0;
  cudaStream_t stream = nullptr;
  DeviceIndex device = 0;
  MempoolId_t pool = no_pool;
  std::shared_ptr<memory_source> source{};
  context_ptr context{};
};

struct device_state {
  int logical = -1;
  std::shared_ptr<memory_source> source;  // for requests outside every pool
  shared_limit limit;
  segment_table segments;
  // For MemPools with an allocator of their own.
  std::atomic<std::uint64_t> own_taken = 0, own_returned = 0, own_allocs = 0, own_frees = 0;
  // With the lock:
  std::uint64_t peak_reserved = 0;  // gpumem's memory and MemPools' own memory together, as last sampled
  double fraction = 1.0;
  device_stats stats;  // counted here; for sampled figures, the peaks only
  std::uint64_t taken_before = 0, returned_before = 0;
  std::uint64_t waits_before = 0, device_allocs_before = 0, device_frees_before = 0;
  pool_table pools{captures_of_torch};
  std::map<MempoolId_t, std::uint64_t> idle_at_end;  // of MemPools that are ending

  [[nodiscard]] std::uint64_t own_bytes() const { return own_taken - own_returned; }
};

struct adapter_state {
  using guard = std::lock_guard<std::mutex>;

  history events;
  std::atomic<bool> ready{false};
  std::atomic<int> routes{0};
  std::deque<device_state> devices;
  mutable std::mutex mutex;  // guards the members below, and parts of device_state
  ska::flat_hash_map<void*, held_block> live_blocks;

  device_state& device_of(DeviceIndex device) {
    TORCH_CHECK(ready && device >= 0 && static_cast<std::size_t>(device) < devices.size(),
                "Allocator not initialized for device ", static_cast<int>(device), ": did you call init?");
    device_state& d = devices[static_cast<std::size_t>(device)];
    TORCH_CHECK(d.logical >= 0, "gpumem: GPU ", static_cast<int>(device),
                " is not among those that GPUMEM_DEVICES names");
    return d;
  }
  std::optional<held_block> find_block(const void* ptr) const {
    const guard lock{mutex};
    const auto found = live_blocks.find(const_cast<void*>(ptr));
    return found != live_blocks.end() ? std::optional{found->second} : std::nullopt;
  }
  void enter(device_state& state, void* ptr, held_block held) {
    const std::size_t bytes = held.requested;
    const guard lock{mutex};
    live_blocks.insert_or_assign(ptr, std::move(held));
    for (const std::size_t type : stat_types) {
      state.stats.allocation[type].increase(1);
      state.stats.allocated_bytes[type].increase(own_blocks::rounded(bytes));
      state.stats.requested_bytes[type].increase(bytes);
    }
  }
  /// Takes a block out; nothing if it is not live.
  std::optional<held_block> leave(void* ptr) {
    const guard lock{mutex};
    const auto found = live_blocks.find(ptr);
    if (found == live_blocks.end()) return std::nullopt;
    held_block held = std::move(found->second);
    live_blocks.erase(found);
    device_stats& stats = devices[static_cast<std::size_t>(held.device)].stats;
    for (const std::size_t type : stat_types) {
      stats.allocation[type].decrease(1);
      stats.allocated_bytes[type].decrease(own_blocks::rounded(held.requested));
      stats.requested_bytes[type].decrease(held.requested);
    }
    return held;
  }
  bool may_capture(const device_state& state) const {
    const guard lock{mutex};
    return state.pools.may_capture();
  }
};
