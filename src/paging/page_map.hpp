// Maps the addresses of a pool's ranges to physical memory.
//
// A run is the result of one `create`: one or more pages, mapped and unmapped as a whole. An address without a run is
// unbacked. Takes one node of host memory per run. The pool's lock guards the map.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <vector>

#include "block_ids.hpp"
#include "gpumem/device.hpp"

namespace gpumem {

class heap;

struct mapped_run {
  address begin = 0;
  std::uint64_t bytes = 0;
  page_run pages;
};

/// Adjacent runs that back one free block.
struct free_stretch {
  address begin = 0;
  std::uint64_t bytes = 0;
};

class page_map {
 public:
  /// Preallocates nodes, so that the next `runs` calls of `insert` take no host memory. 0 frees the unused nodes.
  void make_room(std::size_t runs);
  /// Requires that `run` overlaps no other run.
  void insert(const mapped_run& run);
  /// Removes every run that lies wholly in `[begin, begin + bytes)`.
  void erase(address begin, std::uint64_t bytes) noexcept;

  /// The stretches of runs that lie wholly in blocks of `pool_heap` that are free for `owner` (idle, for `idle_owner`),
  /// lowest first. Skips each run for which `skips` returns true.
  [[nodiscard]] std::vector<free_stretch> stretches(const heap& pool_heap, owner_id owner,
                                                    const std::function<bool(const mapped_run&)>& skips = {}) const;
  /// True if a run overlaps `[begin, begin + bytes)`.
  [[nodiscard]] bool touches(address begin, std::uint64_t bytes) const;

  [[nodiscard]] const std::map<address, mapped_run>& runs() const noexcept { return runs_; }
  [[nodiscard]] std::uint64_t metadata_bytes() const noexcept { return runs_.size() * (sizeof(mapped_run) + 48); }

 private:
  std::map<address, mapped_run> runs_;
  std::uint64_t shortest_bytes_ = UINT64_MAX;  ///< no inserted run was shorter, so shorter free blocks hold none
  std::vector<std::map<address, mapped_run>::node_type> room_;
};

}  // namespace gpumem
