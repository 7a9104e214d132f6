// The source of a pool's blocks: gpumem's memory, or the allocator of a MemPool.
//
// A source handles addresses, stream order and segments, and has a lock of its own. allocator.cpp keeps the properties
// of each tensor's block and treats both kinds of sources alike. This file does not include torch.
#pragma once

#include <cuda_runtime_api.h>

#include <compare>
#include <cstddef>
#include <cstdint>
#include <map>
#include <utility>
#include <vector>

#include "gpumem/allocator.hpp"

/// The id of a MemPool or of a graph's pool; c10::MempoolId_t.
using pool_id = std::pair<unsigned long long, unsigned long long>;
inline constexpr pool_id no_pool{0, 0};

/// A stream and its GPU. The default stream has the same handle on each GPU.
struct device_stream {
  int device = 0;
  cudaStream_t handle = nullptr;
  friend auto operator<=>(const device_stream&, const device_stream&) = default;
};

struct memory_request {
  std::size_t bytes = 0;
  cudaStream_t stream = nullptr;
  gpumem::address place = 0;  ///< the block's exact address; 0: anywhere
};

struct refusal {
  gpumem::oom_slot report;         ///< null if gpumem made none
  bool allocator_refused = false;  ///< the MemPool's allocator returned null
};

struct segment_range {
  void* begin = nullptr;
  std::size_t bytes = 0;
};

/// All segments of a GPU, and the pools that own their blocks.
struct memory_map {
  struct own_segment {
    gpumem::segment_view view;
    pool_id pool = no_pool;
    std::uint64_t number = 0;  ///< in the order in which the pool took its segments
  };
  std::vector<gpumem::segment_view> shared;  ///< of gpumem; each block names its region
  std::map<std::uint64_t, pool_id> pool_of_region;
  std::vector<own_segment> own;
};

/// Figures of a GPU's memory, counted without a walk over its blocks.
struct memory_totals {
  std::size_t pieces = 0;
  std::size_t fenced = 0, fenced_bytes = 0;
  std::size_t split = 0, split_bytes = 0;  ///< inactive, in pieces with other blocks
  std::size_t pool_bytes = 0, pool_live_bytes = 0;
  std::map<pool_id, std::size_t> bytes_by_pool{};
  std::map<std::uint64_t, gpumem::piece_statistics::region_bytes> regions{};  ///< of gpumem

  void add_pool(const pool_id& pool, std::size_t bytes, std::size_t live_bytes) {
    bytes_by_pool[pool] += bytes;
    pool_bytes += bytes;
    pool_live_bytes += live_bytes;
  }
};

class memory_source {
 public:
  memory_source() = default;
  memory_source(const memory_source&) = delete;
  memory_source& operator=(const memory_source&) = delete;
  virtual ~memory_source() = default;

  /// Allocates a block; null if there is no memory for it, with the cause in `why`. Throws on any other error.
  virtual void* allocate_block(const memory_request& asked, refusal& why) = 0;
  /// Allocates a block from idle memory, without new segments; null if there is none.
  virtual void* take_idle(const memory_request& asked) = 0;
  /// Frees a block. Never throws, even within a capture, because a tensor's deleter calls this.
  virtual void free_block(void* ptr) noexcept = 0;
  /// Records that work on `user` uses the block: once freed, it is reusable only when that work is done.
  virtual void record_use(void* ptr, device_stream user) = 0;
  /// Returns the segment that contains the address. Throws if there is none.
  [[nodiscard]] virtual segment_range segment_around(const void* ptr) const = 0;
  virtual void describe(memory_map& map, const pool_id& pool) const = 0;
  /// Adds what `describe` shows. gpumem's memory of the whole GPU comes before that of its pools.
  virtual void count(memory_totals& totals, const pool_id& pool) const = 0;
  /// Returns idle memory: to the other requests of the GPU, or to its allocator. True if there was any. Requires that
  /// no capture is open and that no graph may write the memory.
  virtual bool give_back() = 0;
  /// Ends the pool. Live blocks stay until they are freed.
  virtual void close() = 0;
  /// True if the source holds no memory of its own.
  [[nodiscard]] virtual bool is_empty() const noexcept = 0;
};
