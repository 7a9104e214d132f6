// Which physical memory stands behind which addresses of a pool's ranges.
//
// In runs: one `create` of one or more pages, mapped and unmapped as a whole. The pool's lock guards it. Host memory is
// one node a run; an address without a run has nothing behind it.
#pragma once

#include <cstdint>
#include <map>
#include <vector>

#include "gpumem/device.hpp"

namespace gpumem {

class heap;

struct mapped_run {
  address begin = 0;
  std::uint64_t bytes = 0;
  page_run pages;
};

/// Runs that lie side by side behind one idle block.
struct idle_stretch {
  address begin = 0;
  std::uint64_t bytes = 0;
};

class page_map {
 public:
  /// The next so many `insert`s take no host memory; 0 gives back what is left of an earlier room.
  void make_room(std::size_t runs);
  /// Requires that no run overlaps it.
  void insert(const mapped_run& run);
  /// Takes every run out that lies within.
  void erase(address begin, std::uint64_t bytes) noexcept;

  /// Every stretch of runs that lie wholly behind idle blocks of `pool_heap`, but for those that touch `[keep,
  /// keep_end)`, lowest first.
  [[nodiscard]] std::vector<idle_stretch> idle(const heap& pool_heap, address keep, address keep_end) const;
  /// True where a run has any byte within.
  [[nodiscard]] bool touches(address begin, std::uint64_t bytes) const;

  [[nodiscard]] const std::map<address, mapped_run>& runs() const noexcept { return runs_; }
  [[nodiscard]] std::uint64_t metadata_bytes() const noexcept { return runs_.size() * (sizeof(mapped_run) + 48); }

 private:
  std::map<address, mapped_run> runs_;
  std::vector<std::map<address, mapped_run>::node_type> room_;
};

}  // namespace gpumem
