// How a driver serves small cuMemAlloc requests: several share one 2 MiB segment, 512 bytes apart or more.
//
// First fit. A segment goes back to the device with its last block. No lock: the world's.
#pragma once

#include <cstdint>
#include <map>

#include "gpumem/sim_device.hpp"
#include "range_set.hpp"

namespace gpumem::simcuda {

class small_blocks {
 public:
  static constexpr std::uint64_t segment_bytes = std::uint64_t{2} << 20;
  static constexpr std::uint64_t largest = std::uint64_t{1} << 20;

  explicit small_blocks(sim_device& on) : device_{on} {}

  result<address> alloc(std::uint64_t bytes) {
    const std::uint64_t rounded = (bytes + 511) / 512 * 512;
    auto at = free_.first_fit(rounded, 512);
    if (!at) {
      const result<address> segment = device_.alloc(segment_bytes);
      if (!segment) return segment;
      free_.insert(*segment, *segment + segment_bytes);
      live_[*segment] = 0;
      at = *segment;
    }
    free_.erase(*at, *at + rounded);
    blocks_[*at] = rounded;
    ++live_.at(segment_of(*at));
    return *at;
  }

  [[nodiscard]] bool owns(address at) const { return blocks_.count(at) != 0; }

  status free(address at) {
    const auto found = blocks_.find(at);
    if (found == blocks_.end()) return {errc::invalid_argument, "not a small block"};
    const address segment = segment_of(at);
    if (live_.at(segment) == 1) {
      if (status gone = device_.free(segment); !gone) return gone;
      free_.erase(segment, segment + segment_bytes);
      live_.erase(segment);
    } else {
      // The driver's free waits for the work in flight, whether or not memory goes back.
      if (status waited = device_.synchronize(); !waited) return waited;
      free_.insert(at, at + found->second);
      --live_.at(segment);
    }
    blocks_.erase(found);
    return {};
  }

 private:
  [[nodiscard]] address segment_of(address at) const { return std::prev(live_.upper_bound(at))->first; }

  sim_device& device_;
  range_set free_;
  std::map<address, std::uint64_t> blocks_;
  std::map<address, std::uint64_t> live_;  // blocks in each segment
};

}  // namespace gpumem::simcuda
