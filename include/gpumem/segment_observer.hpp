/// Observers of the memory that pools take from their devices: for registrations with NCCL or a network card, histories
/// and tables.
#pragma once

#include <cstdint>

#include "gpumem/device.hpp"
#include "gpumem/export.h"

namespace GPUMEM_API gpumem {

/// A segment, or pages behind a part of a range of addresses.
struct segment_extent {
  int device = 0;  ///< logical
  address begin = 0;
  std::uint64_t bytes = 0;
  bool paged = false;  ///< pages; one call may remove parts of what several calls added, and the reverse
};

/// Told of each segment after it came and before it goes.
///
/// The thread that makes the driver's call makes these calls, without a lock of gpumem's, but it may have the pool's
/// right to grow, for which other threads wait. An observer may therefore ask the allocator for figures, segments and
/// blocks, and free blocks. It must not allocate, trim, or set a limit, and must not wait for a thread that does.
/// `segment_added` may come during a capture. `segment_removing` never does, unless gpumem does not know of the
/// capture. What an observer throws is logged and otherwise ignored.
class segment_observer {
 public:
  virtual ~segment_observer() = default;
  /// The memory is accessible. No block lies in it yet.
  virtual void segment_added(const segment_extent& added) = 0;
  /// The memory is still accessible, and all work on its blocks is done as far as gpumem knows. If the driver then does
  /// not unmap pages, they are added again. A segment that the driver does not free is lost to the pool.
  virtual void segment_removing(const segment_extent& removing) = 0;

 protected:
  segment_observer() = default;
  segment_observer(const segment_observer&) = default;
  segment_observer& operator=(const segment_observer&) = default;
};

}  // namespace gpumem
