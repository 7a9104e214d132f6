// What lies below a block cache, as the cache sees it: whoever cuts blocks from memory and takes them back.
#pragma once

#include <cstdint>
#include <span>

#include "block_ids.hpp"
#include "gpumem/device.hpp"

namespace gpumem {

/// What the blocks of one class have to lie in, of which caches may keep a share.
struct class_room {
  std::uint64_t bytes = 0;          ///< of the segments of that class
  std::uint64_t free_bytes = 0;     ///< of these, in nobody's hand: neither the program's nor a cache's
  std::uint64_t segment_bytes = 0;  ///< of all segments
  bool only_class = true;           ///< all segments are of that class
  bool paged = false;               ///< memory comes page by page, and idle pages move
};

/// Called under the lock that guards the cache.
class arena_below {
 public:
  /// Takes back a block that a cache held: it is free again, in the order of `o`.
  virtual void take_back(block_index i, owner_id o) noexcept = 0;
  /// Takes back what was freed behind all work of the device. `behind` was recorded when the last of these was freed,
  /// and is the callee's from here on; none where that could not be.
  virtual void take_back_behind(std::span<const block_index> blocks, fence behind) noexcept = 0;
  /// Bytes of all blocks that are out: the program's and those in caches.
  [[nodiscard]] virtual std::uint64_t out_bytes() const noexcept = 0;
  [[nodiscard]] virtual class_room room_of(unsigned klass) const noexcept = 0;

 protected:
  ~arena_below() = default;
};

}  // namespace gpumem
