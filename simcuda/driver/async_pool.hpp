// A model of the driver's stream-ordered pool (cuMemAllocAsync), limited to documented behaviour.
//
// Segments of 32 MiB or a multiple, first fit, with coalescing. A block freed on one stream may serve another stream
// after a wait on that stream (the pool's "internal dependencies"). Each synchronization returns free segments beyond
// the release threshold (0 unless the program sets it) to the device. No lock of its own; requires the driver state's
// lock.
#pragma once

#include <cstdint>
#include <map>

#include "gpumem/sim_device.hpp"
#include "range_set.hpp"

namespace gpumem::simcuda {

class async_pool {
 public:
  static constexpr std::uint64_t segment_unit = std::uint64_t{32} << 20;

  explicit async_pool(sim_device& device) : device_{device} {}
  ~async_pool() {
    for (auto& [stream, f] : freed_by_) device_.drop(f);
  }
  async_pool& operator=(async_pool&&) = delete;

  result<address> alloc(std::uint64_t bytes, stream_ref alloc_stream) {
    const std::uint64_t rounded = (bytes + 511) / 512 * 512;
    auto begin = free_.first_fit(rounded, 512);
    if (!begin) {
      const std::uint64_t segment_bytes = (rounded + segment_unit - 1) / segment_unit * segment_unit;
      result<address> segment = device_.alloc(segment_bytes);
      if (!segment && segment_bytes > rounded) {
        trim(0);
        segment = device_.alloc(segment_bytes);
      }
      if (!segment) return segment;
      segments_[*segment] = segment_bytes;
      free_.insert(*segment, *segment + segment_bytes);
      begin = *segment;
    }
    for (const auto& [stream, f] : freed_by_) {
      if (stream == alloc_stream.handle) continue;
      if (status waits = device_.wait_stream(alloc_stream, f); !waits) return waits;
    }
    free_.erase(*begin, *begin + rounded);
    blocks_[*begin] = rounded;
    used_ += rounded;
    return *begin;
  }

  [[nodiscard]] bool owns(address begin) const { return blocks_.count(begin) != 0; }

  status free(address begin, stream_ref free_stream) {
    const auto found = blocks_.find(begin);
    if (found == blocks_.end()) return {errc::invalid_argument, "not a block of the pool"};
    const result<fence> f = device_.record(free_stream);
    if (!f) return f.why();
    if (const auto last = freed_by_.find(free_stream.handle); last != freed_by_.end()) device_.drop(last->second);
    freed_by_[free_stream.handle] = *f;
    device_.given_back(begin);
    free_.insert(begin, begin + found->second);
    used_ -= found->second;
    blocks_.erase(found);
    return {};
  }

  /// Call when all enqueued work is done: later allocations need not wait for earlier frees, and idle segments may
  /// return.
  void synchronised() {
    for (auto& [stream, f] : freed_by_) device_.drop(f);
    freed_by_.clear();
    trim(threshold);
  }

  void trim(std::uint64_t keep) {
    for (auto segment = segments_.begin(); segment != segments_.end();) {
      const auto [begin, bytes] = *segment;
      if (reserved() <= keep || !free_.covers(begin, begin + bytes) || !device_.free(begin)) {
        ++segment;
        continue;
      }
      free_.erase(begin, begin + bytes);
      segment = segments_.erase(segment);
    }
  }

  [[nodiscard]] std::uint64_t reserved() const {
    std::uint64_t sum = 0;
    for (const auto& [begin, bytes] : segments_) sum += bytes;
    return sum;
  }
  [[nodiscard]] std::uint64_t used() const { return used_; }
  std::uint64_t threshold = 0;

 private:
  sim_device& device_;
  range_set free_;
  std::map<address, std::uint64_t> segments_;
  std::map<address, std::uint64_t> blocks_;
  std::map<void*, fence> freed_by_;  // each stream's last free
  std::uint64_t used_ = 0;
};

}  // namespace gpumem::simcuda
