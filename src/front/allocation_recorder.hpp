/// Receives every allocation and free of a pool, in the order of the calls.
///
/// Any thread. The allocator calls `allocated` before the program gets the block, and `freed` before the block can be
/// reused. A recorded pool has no thread caches.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "gpumem/device.hpp"
#include "gpumem/statistics.hpp"
#include "gpumem/status.hpp"

namespace gpumem {

class allocation_recorder {
 public:
  allocation_recorder() = default;
  virtual ~allocation_recorder() = default;
  allocation_recorder& operator=(allocation_recorder&&) = delete;

  virtual void allocated(address begin, std::uint64_t requested_bytes, stream_ref stream) noexcept = 0;
  virtual void freed(address begin, std::uint64_t requested_bytes, stream_ref stream) noexcept = 0;
  /// Called when the pool refuses a request because it is out of memory.
  virtual void refused(const oom_report& /*why*/, stream_ref /*stream*/) noexcept {}
  /// The file of a recording that `gpumem why` reads; empty for others.
  [[nodiscard]] virtual std::string recording() const { return {}; }
  /// Writes the records so far to their file.
  virtual status flush() = 0;
  /// Called when the program or the allocator ends; `at_end` returns the pool's figures.
  virtual status finish(const std::function<statistics()>& /*at_end*/) { return flush(); }
};

using recorder_list = std::vector<std::unique_ptr<allocation_recorder>>;

}  // namespace gpumem
