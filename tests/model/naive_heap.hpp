/// The model: a list of the blocks that the program and graphs hold, searched from end to end.
///
/// It shares no code with the product, not even arithmetic. A range belongs to a graph while the graph exists, freed or
/// not: only the capture in which it was allocated may get it again.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

namespace gpumem::model {

struct live_range {
  std::uint64_t begin = 0;
  std::uint64_t bytes = 0;  ///< in whole units of 512
  std::uint64_t requested_bytes = 0;
  unsigned pool = 0;
  unsigned block = 0;  ///< the number of the operation that allocated it
  unsigned graph = 0;  ///< 0: none
  unsigned stream = 0;
  std::uint64_t generation = 0;  ///< of the stream in that slot
  struct user {
    unsigned stream;
    std::uint64_t generation;
  };
  std::vector<user> users;  ///< recorded ones
  std::uint64_t segment_begin = 0;
  std::uint64_t segment_bytes = 0;
};

struct graph_range {
  std::uint64_t begin = 0;
  std::uint64_t bytes = 0;
  unsigned graph = 0;
};

class naive_heap {
 public:
  [[nodiscard]] static std::uint64_t whole_blocks(std::uint64_t bytes) noexcept { return (bytes + 511) / 512 * 512; }

  /// The live range that overlaps, or null.
  [[nodiscard]] const live_range* overlapping(std::uint64_t begin, std::uint64_t bytes) const noexcept {
    for (const live_range& r : live_) {
      if (begin < r.begin + r.bytes && r.begin < begin + bytes) return &r;
    }
    return nullptr;
  }

  /// The range of a graph other than `mine` that overlaps, or null.
  [[nodiscard]] const graph_range* overlapping_graph(std::uint64_t begin, std::uint64_t bytes,
                                                     unsigned mine) const noexcept {
    for (const graph_range& r : graphs_) {
      if (r.graph != mine && begin < r.begin + r.bytes && r.begin < begin + bytes) return &r;
    }
    return nullptr;
  }

  /// The largest range without a live block in any segment that holds a block for which `counts` is true.
  template <typename Counts>
  [[nodiscard]] std::uint64_t largest_gap(Counts counts) const {
    std::uint64_t largest = 0;
    for (const live_range& first : live_) {
      if (!counts(first)) continue;
      // From the segment's begin and from the end of each block, to the next block or the segment's end.
      const std::uint64_t segment_end = first.segment_begin + first.segment_bytes;
      for (const std::uint64_t from : {first.segment_begin, first.begin + first.bytes}) {
        std::uint64_t to = segment_end;
        for (const live_range& r : live_) {
          if (r.begin >= from && r.begin < to) to = r.begin;
        }
        largest = std::max(largest, to - from);
      }
    }
    return largest;
  }

  void add(const live_range& r) {
    live_.push_back(r);
    if (r.graph != 0) graphs_.push_back({r.begin, r.bytes, r.graph});
  }
  [[nodiscard]] live_range* find(unsigned block) noexcept {
    const auto it = std::find_if(live_.begin(), live_.end(), [&](const live_range& r) { return r.block == block; });
    return it == live_.end() ? nullptr : &*it;
  }
  void remove(unsigned block) {
    std::erase_if(live_, [&](const live_range& r) { return r.block == block; });
  }
  void release_graph(unsigned graph) {
    std::erase_if(graphs_, [&](const graph_range& r) { return r.graph == graph; });
    for (live_range& r : live_) {
      if (r.graph == graph) r.graph = 0;
    }
  }

  [[nodiscard]] const std::vector<live_range>& live() const noexcept { return live_; }
  [[nodiscard]] const std::vector<graph_range>& graphs() const noexcept { return graphs_; }

 private:
  std::vector<live_range> live_;
  std::vector<graph_range> graphs_;  ///< freed ones too; a range that was used twice has two entries
};

}  // namespace gpumem::model
