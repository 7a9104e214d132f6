// Between the threads' caches and the heap: batches of blocks of one stream and one size, handed over as a whole.
//
// A thread that frees what another one allocates fills its bins, and the other one's run dry; both meet here once a
// batch and not once a block. Blocks in the depot are out of the heap, and their slots say `cache`. The pool locks.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <utility>

#include "stream_cache.hpp"

namespace gpumem {

class depot {
 public:
  /// The slots of its blocks, in the order in which they were freed.
  using batch = std::array<slot_index, stream_cache::batch>;

  /// False where it holds as many batches of that size as it may. Throws std::bad_alloc, and is as it was then.
  bool put(owner_id o, std::uint32_t units, const batch& given) {
    std::deque<batch>& of_size = held_[{o, units}];
    if (of_size.size() == most_batches) return false;
    of_size.push_back(given);
    ++batches_;
    units_ += units;
    return true;
  }
  /// Whether `take` finds one.
  [[nodiscard]] bool holds(owner_id o, std::uint32_t units) const noexcept {
    const auto at = held_.find({o, units});
    return at != held_.end() && !at->second.empty();
  }
  /// The oldest batch of that size. Requires that it holds one.
  batch take(owner_id o, std::uint32_t units) noexcept {
    const auto at = held_.find({o, units});
    const batch oldest = at->second.front();
    at->second.pop_front();
    if (at->second.empty()) held_.erase(at);
    --batches_;
    units_ -= units;
    return oldest;
  }
  /// Calls `each(owner, units, batch)` for every batch of that owner, of any where it is `idle_owner`, and forgets
  /// them.
  template <typename Each>
  void take_all(owner_id only, Each each) noexcept {
    for (auto at = held_.begin(); at != held_.end();) {
      const auto [o, units] = at->first;
      if (only != idle_owner && o != only) {
        ++at;
        continue;
      }
      for (const batch& b : at->second) each(o, units, b);
      batches_ -= at->second.size();
      units_ -= at->second.size() * units;
      at = held_.erase(at);
    }
  }
  /// Calls `each(owner, units, batch)` for every batch.
  template <typename Each>
  void for_each(Each each) const {
    for (const auto& [of, batches] : held_) {
      for (const batch& b : batches) each(of.first, of.second, b);
    }
  }

  [[nodiscard]] std::uint64_t bytes() const noexcept { return units_ * stream_cache::batch * block_granularity; }
  [[nodiscard]] std::uint64_t held_blocks() const noexcept { return batches_ * stream_cache::batch; }
  [[nodiscard]] std::uint64_t metadata_bytes() const noexcept {
    return batches_ * sizeof(batch) + held_.size() * bytes_a_size;
  }

 private:
  static constexpr std::size_t most_batches = 64;     // of one size
  static constexpr std::uint64_t bytes_a_size = 704;  // about: a node and an empty deque

  std::map<std::pair<owner_id, std::uint32_t>, std::deque<batch>> held_;  // by owner and units
  std::uint64_t batches_ = 0;
  std::uint64_t units_ = 0;  // of one block of each batch
};

}  // namespace gpumem
