/// An observer that learns a pool's memory only from its notifications.
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <mutex>
#include <utility>
#include <vector>

#include "gpumem/request.hpp"
#include "gpumem/segment_observer.hpp"
#include "range_set.hpp"

namespace gpumem {

class known_segments final : public segment_observer {
 public:
  struct event {
    bool added;
    segment_extent extent;
  };
  /// Called at each event, before it is recorded.
  std::function<void(const event&)> at_event = [](const event&) {};

  void segment_added(const segment_extent& extent) override {
    at_event({true, extent});
    const std::lock_guard lock{mutex_};
    known_.erase(extent.begin, extent.begin + extent.bytes);
    known_.insert(extent.begin, extent.begin + extent.bytes);
    known_bytes_ += extent.bytes;
    events_.push_back({true, extent});
  }
  void segment_removing(const segment_extent& extent) override {
    at_event({false, extent});
    const std::lock_guard lock{mutex_};
    EXPECT_TRUE(known_.covers(extent.begin, extent.begin + extent.bytes)) << "memory goes that never came";
    known_.erase(extent.begin, extent.begin + extent.bytes);
    known_bytes_ -= extent.bytes;
    events_.push_back({false, extent});
  }
  [[nodiscard]] std::vector<event> events() const {
    const std::lock_guard lock{mutex_};
    return events_;
  }
  /// Expects that exactly the memory in these segments is known, and `vacating` bytes at addresses that it left.
  void expect_all(const std::vector<segment_view>& segments, std::uint64_t vacating = 0) const {
    const std::lock_guard lock{mutex_};
    std::uint64_t bytes = vacating;
    for (const segment_view& segment : segments) {
      for (const block_view& b : segment.blocks) {
        if (b.is == block_view::state::unbacked) continue;
        bytes += b.bytes;
        EXPECT_TRUE(known_.covers(b.begin, b.begin + b.bytes)) << "nobody was told of " << b.bytes << " bytes";
      }
    }
    EXPECT_EQ(bytes, known_bytes_) << "memory is known that is not the pool's, or was added twice";
  }

 private:
  mutable std::mutex mutex_;
  range_set known_;
  std::uint64_t known_bytes_ = 0;
  std::vector<event> events_;
};

}  // namespace gpumem
