// One pool's part in a capture: while it lives, the pool makes no call that would invalidate the capture.
#pragma once

#include <cstdint>
#include <utility>

#include "stream_order.hpp"

namespace gpumem {

class arena;

/// Ends with its scope. A capture of several pools has one for each.
class pool_capture {
 public:
  pool_capture() = default;
  pool_capture(pool_capture&& moved) noexcept { *this = std::move(moved); }
  pool_capture& operator=(pool_capture&& moved) noexcept {
    std::swap(pool_, moved.pool_);
    std::swap(stream_, moved.stream_);
    std::swap(effect_, moved.effect_);
    return *this;
  }
  /// Ends the capture, and releases a graph that `end` has not returned.
  ~pool_capture();
  /// Ends the capture. Returns the number of the graph that owns the capture's blocks, for `arena::graph_release`; 0
  /// if the capturing stream is not the pool's.
  std::uint64_t end() noexcept;

 private:
  friend class arena;
  pool_capture(arena& pool, owner_id stream, capture_effect effect) noexcept
      : pool_{&pool}, stream_{stream}, effect_{effect} {}

  arena* pool_ = nullptr;
  owner_id stream_ = idle_owner;
  capture_effect effect_ = capture_effect::announced;
};

}  // namespace gpumem
