/// What is told of every allocation and free of a pool, in the order of the calls.
///
/// Any thread. The allocator calls `allocated` before the program gets the block and `freed` before anyone else can get
/// it. A pool that is recorded has no thread caches.
#pragma once

#include <functional>

#include "gpumem/device.hpp"
#include "gpumem/statistics.hpp"
#include "gpumem/status.hpp"

namespace gpumem {

class allocation_recorder {
 public:
  allocation_recorder() = default;
  virtual ~allocation_recorder() = default;
  allocation_recorder(const allocation_recorder&) = delete;
  allocation_recorder& operator=(const allocation_recorder&) = delete;

  virtual void allocated(address at, std::uint64_t requested_bytes, stream_ref s) noexcept = 0;
  virtual void freed(address at, std::uint64_t requested_bytes, stream_ref s) noexcept = 0;
  /// What there is so far is where readers look for it.
  virtual status flush() = 0;
  /// The program ends, or the allocator does; `at_end` asks its pool for its figures.
  virtual status finish(const std::function<statistics()>& /*at_end*/) { return flush(); }
};

}  // namespace gpumem
