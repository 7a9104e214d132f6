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
  /// Pages: a removed extent may cover parts of several added extents, and an added one parts of several removed ones.
  bool paged = false;
};

/// Notified of each segment after it is added and before it is removed.
///
/// The thread that makes the driver call also calls the observer. It holds no lock of gpumem. It may be the thread
/// that grows the pool, for which other threads wait. So an observer may query figures, segments and blocks, and free
/// blocks. It must not allocate, trim, or set a limit, or wait for a thread that does. `segment_added` may be called
/// during a capture; `segment_removing` is not, unless gpumem does not know of the capture. Exceptions are logged and
/// ignored.
class segment_observer {
 public:
  virtual ~segment_observer() = default;
  /// The memory is accessible. No block lies in it yet. It may be accessible at other addresses as well, where no block
  /// lies any more, until it is removed there.
  virtual void segment_added(const segment_extent& added) = 0;
  /// The memory is still accessible, and all work on its blocks that gpumem knows of is done. If the driver then fails
  /// to unmap pages, they are added again. If it fails to free a segment, the pool loses the segment.
  virtual void segment_removing(const segment_extent& removing) = 0;

 protected:
  segment_observer() = default;
  segment_observer(const segment_observer&) = default;
  segment_observer& operator=(const segment_observer&) = default;
};

}  // namespace gpumem
