// Serves small cuMemAlloc requests as a driver does: several share one 2 MiB segment, at least 512 bytes apart.
//
// First fit, indexed by the size of each segment's largest hole, so that the cost per block hardly grows with their
// number. The last free in a segment returns it to the device. No lock of its own; requires the driver state's lock.
// Invariant: each segment is in the set of `by_hole_` for its largest hole.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>
#include <map>
#include <set>
#include <unordered_map>
#include <utility>
#include <vector>

#include "gpumem/sim_device.hpp"

namespace gpumem::simcuda {

class small_blocks {
 public:
  static constexpr std::uint64_t segment_bytes = std::uint64_t{2} << 20;
  static constexpr std::uint64_t largest = std::uint64_t{1} << 20;

  explicit small_blocks(sim_device& device) : device_{device} {}

  result<address> alloc(std::uint64_t bytes) {
    const std::uint64_t rounded = (bytes + 511) / 512 * 512;
    address begin = first_with_room(rounded);
    if (begin == nowhere) {
      const result<address> fresh = device_.alloc(segment_bytes);
      if (!fresh) return fresh;
      begin = *fresh;
      segments_[begin] = {.holes = {{begin, begin + segment_bytes}}, .largest_hole = segment_bytes};
    }
    segment& owner = segments_.at(begin);
    forget(begin, owner);
    const auto first = std::find_if(owner.holes.begin(), owner.holes.end(), [rounded](const hole& candidate) {
      return candidate.end - candidate.begin >= rounded;
    });
    const address block_begin = first->begin;
    const bool was_largest = first->end - first->begin == owner.largest_hole;
    first->begin += rounded;
    if (first->begin == first->end) owner.holes.erase(first);
    if (was_largest) find_largest(owner);
    ++owner.live;
    note(begin, owner);
    blocks_[block_begin] = {rounded, begin};
    return block_begin;
  }

  [[nodiscard]] bool owns(address begin) const { return blocks_.count(begin) != 0; }

  status free(address begin) {
    const auto found = blocks_.find(begin);
    if (found == blocks_.end()) return {errc::invalid_argument, "not a small block"};
    const block freed = found->second;
    segment& owner = segments_.at(freed.segment);
    if (owner.live == 1) {
      if (status gone = device_.free(freed.segment); !gone) return gone;
      forget(freed.segment, owner);
      segments_.erase(freed.segment);
    } else {
      // A driver's free waits for the work in flight, even if it returns no memory.
      if (status waited = device_.synchronize(); !waited) return waited;
      forget(freed.segment, owner);
      add_hole(owner, {begin, begin + freed.bytes});
      note(freed.segment, owner);
      --owner.live;
    }
    blocks_.erase(found);
    return {};
  }

 private:
  struct hole {
    address begin;
    address end;
  };
  struct segment {
    std::vector<hole> holes{};  ///< by address; no two are adjacent
    std::uint64_t live = 0;     ///< blocks
    std::uint64_t largest_hole = 0;
  };
  struct block {
    std::uint64_t bytes = 0;
    address segment = 0;
  };

  static constexpr address nowhere = UINT64_MAX;

  /// Returns the lowest segment with a hole of at least this many bytes.
  [[nodiscard]] address first_with_room(std::uint64_t bytes) const {
    const auto own = static_cast<std::size_t>(std::bit_width(bytes));
    address lowest = nowhere;
    for (std::size_t i = own + 1; i < by_hole_.size(); ++i) {  // every segment in these sets has room
      if (!by_hole_[i].empty()) lowest = std::min(lowest, *by_hole_[i].begin());
    }
    for (const address begin : by_hole_[own]) {
      if (begin > lowest) break;
      if (segments_.at(begin).largest_hole >= bytes) return begin;
    }
    return lowest;
  }
  void note(address begin, const segment& owner) { by_hole_[set_of(owner)].insert(begin); }
  void forget(address begin, const segment& owner) { by_hole_[set_of(owner)].erase(begin); }
  static std::size_t set_of(const segment& owner) {
    return static_cast<std::size_t>(std::bit_width(owner.largest_hole));
  }
  /// Updates `largest_hole` after that hole has shrunk; often another one has the same size.
  static void find_largest(segment& owner) {
    const std::uint64_t before = std::exchange(owner.largest_hole, 0);
    for (const hole& h : owner.holes) {
      owner.largest_hole = std::max(owner.largest_hole, h.end - h.begin);
      if (owner.largest_hole == before) return;
    }
  }
  static void add_hole(segment& owner, hole fresh) {
    auto next = std::lower_bound(owner.holes.begin(), owner.holes.end(), fresh.end,
                                 [](const hole& candidate, address end) { return candidate.begin < end; });
    if (next != owner.holes.end() && next->begin == fresh.end) {
      fresh.end = next->end;
      next = owner.holes.erase(next);
    }
    if (next != owner.holes.begin() && std::prev(next)->end == fresh.begin) {
      std::prev(next)->end = fresh.end;
      fresh.begin = std::prev(next)->begin;
    } else {
      owner.holes.insert(next, fresh);
    }
    owner.largest_hole = std::max(owner.largest_hole, fresh.end - fresh.begin);
  }

  sim_device& device_;
  std::map<address, segment> segments_;
  std::array<std::set<address>, 23> by_hole_;  ///< by the bit width of the largest hole's size, 0 to 2 MiB
  std::unordered_map<address, block> blocks_;
};

}  // namespace gpumem::simcuda
