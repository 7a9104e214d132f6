// A set of bytes as sorted, disjoint, non-touching ranges in one vector.
//
// The simulated device has one set of free addresses and one of accessible bytes. Lookups are binary searches. Changes
// move the later ranges, which is cheaper than a tree for a few thousand ranges. Not synchronised. Invariant for
// neighbours a, b: a.begin < a.end < b.begin.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "gpumem/device.hpp"

namespace gpumem {

class range_set {
 public:
  struct range {
    address begin = 0;
    address end = 0;
  };

  /// Adds `[begin, end)`, which must not overlap the set, and merges touching neighbours.
  void insert(address begin, address end);
  /// Removes `[begin, end)`, which may be partly outside the set.
  void erase(address begin, address end);
  /// True when every byte of `[begin, end)` is in the set.
  [[nodiscard]] bool covers(address begin, address end) const noexcept;
  /// The lowest multiple of `alignment` at which `bytes` bytes of the set begin.
  [[nodiscard]] std::optional<address> first_fit(std::uint64_t bytes, std::uint64_t alignment) const noexcept;

 private:
  /// The index of the first range that ends after `position`.
  [[nodiscard]] std::size_t first_ending_behind(address position) const noexcept;

  std::vector<range> ranges_;
};

}  // namespace gpumem
