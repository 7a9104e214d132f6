// The arena's interface for the block cache above it.
#pragma once

#include <cstdint>
#include <span>

#include "block_ids.hpp"
#include "gpumem/device.hpp"

namespace gpumem {

/// The memory of one segment class. Caches may keep a share of its free bytes.
struct class_usage {
  std::uint64_t bytes = 0;       ///< of the segments of that class
  std::uint64_t free_bytes = 0;  ///< of these, held neither by the program nor by a cache
  bool paged = false;            ///< memory comes page by page, and idle pages move
};

/// Called under the lock that guards the cache.
class cache_source {
 public:
  /// Frees a block that a cache held, in the order of `owner`.
  virtual void free_block(block_index index, owner_id owner) noexcept = 0;
  /// Frees blocks behind all work of the device. Takes over `batch_fence`, recorded after the last of these frees;
  /// empty if none could be recorded.
  virtual void free_behind_fence(std::span<const block_index> blocks, fence batch_fence) noexcept = 0;
  /// Keeps the owner number assigned to its stream while a cache for `owner` exists.
  virtual void ref_owner(owner_id owner) noexcept = 0;
  /// The cache for `owner` has ended.
  virtual void unref_owner(owner_id owner) noexcept = 0;
  /// Bytes of all blocks that are out: the program's and those in caches.
  [[nodiscard]] virtual std::uint64_t out_bytes() const noexcept = 0;
  [[nodiscard]] virtual class_usage usage_of(unsigned segment_class) const noexcept = 0;

 protected:
  ~cache_source() = default;
};

}  // namespace gpumem
