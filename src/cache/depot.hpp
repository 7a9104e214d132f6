// The depot between threads' caches and the heap: whole batches of blocks of one stream and one size.
//
// If one thread frees the blocks that another allocates, its bins fill up while the other's run dry. They exchange
// whole batches here instead of single blocks. Blocks in the depot are out of the heap, and their slots say `cache`.
// The pool locks.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <utility>

#include "stream_cache.hpp"

namespace gpumem {

class depot {
 public:
  /// The slots of a batch's blocks, in the order of their frees.
  using batch = std::array<slot_index, stream_cache::batch>;

  /// False if the depot is full. Throws std::bad_alloc with nothing changed.
  bool put(owner_id owner, std::uint32_t units, const batch& given) {
    if (held_.size() == most_batches) return false;
    held_.insert({{owner, units}, given});
    bytes_ += bytes_of(units);
    return true;
  }
  /// Whether the depot holds a batch for `take`.
  [[nodiscard]] bool holds(owner_id owner, std::uint32_t units) const noexcept {
    return held_.contains({owner, units});
  }
  /// Takes the oldest batch of that owner and size. Requires that there is one.
  batch take(owner_id owner, std::uint32_t units) noexcept {
    const auto oldest = held_.lower_bound({owner, units});
    const batch taken = oldest->second;
    held_.erase(oldest);
    bytes_ -= bytes_of(units);
    return taken;
  }
  /// Calls `each(owner, batch)` for every batch of `only`, or of any owner for `idle_owner`, and removes them.
  template <typename Each>
  void take_all(owner_id only, Each each) noexcept {
    std::erase_if(held_, [&](const auto& held) {
      const auto [owner, units] = held.first;
      if (only != idle_owner && owner != only) return false;
      each(owner, held.second);
      bytes_ -= bytes_of(units);
      return true;
    });
  }
  /// Calls `each(owner, units, batch)` for every batch.
  template <typename Each>
  void for_each(Each each) const {
    for (const auto& [of, held] : held_) each(of.first, of.second, held);
  }

  [[nodiscard]] static constexpr std::uint64_t bytes_of(std::uint32_t units) noexcept {
    return std::uint64_t{stream_cache::batch} * units * block_granularity;
  }
  [[nodiscard]] std::uint64_t bytes() const noexcept { return bytes_; }
  [[nodiscard]] std::uint64_t held_blocks() const noexcept { return held_.size() * stream_cache::batch; }
  [[nodiscard]] std::uint64_t metadata_bytes() const noexcept { return held_.size() * bytes_a_batch; }

 private:
  static constexpr std::size_t most_batches = 128;
  using key = std::pair<owner_id, std::uint32_t>;                     // owner and units
  static constexpr std::uint64_t bytes_a_batch = sizeof(batch) + 40;  // estimate: with its node

  std::multimap<key, batch> held_;  // within a key, the oldest first
  std::uint64_t bytes_ = 0;
};

}  // namespace gpumem
