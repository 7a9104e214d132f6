// From a block's position to its record: an open-addressing hash table with linear probing.
//
// Deletion shifts back, so there are no tombstones and a table that has stopped growing never allocates again.
// At most half full: 32 B for each live block of the busiest moment at the worst, 16 B at the best. The pool locks.
#pragma once

#include <cstdint>
#include <vector>

#include "block.hpp"

namespace gpumem {

class address_map {
 public:
  address_map() : slots_(64) {}

  /// Requires that `position` is not in it.
  void insert(std::uint64_t position, block_index i) {
    if ((count_ + 1) * 2 > slots_.size()) grow();
    place(slots_, position, i);
    ++count_;
  }
  [[nodiscard]] block_index find(std::uint64_t position) const noexcept {
    for (std::size_t at = home(slots_, position); slots_[at].index != no_block; at = next(slots_, at)) {
      if (slots_[at].position == position) return slots_[at].index;
    }
    return no_block;
  }
  /// Requires that `position` is in it.
  void erase(std::uint64_t position) noexcept {
    std::size_t hole = home(slots_, position);
    while (slots_[hole].position != position || slots_[hole].index == no_block) hole = next(slots_, hole);
    for (std::size_t at = next(slots_, hole); slots_[at].index != no_block; at = next(slots_, at)) {
      // An entry may fill the hole when the hole lies between its home and its place.
      const std::size_t from_home = (at - home(slots_, slots_[at].position)) & (slots_.size() - 1);
      const std::size_t from_hole = (at - hole) & (slots_.size() - 1);
      if (from_home >= from_hole) {
        slots_[hole] = slots_[at];
        hole = at;
      }
    }
    slots_[hole].index = no_block;
    --count_;
  }
  [[nodiscard]] std::size_t size() const noexcept { return count_; }
  [[nodiscard]] std::uint64_t bytes() const noexcept { return slots_.size() * sizeof(slot); }

 private:
  struct slot {
    std::uint64_t position = 0;
    block_index index = no_block;
  };

  static std::size_t home(const std::vector<slot>& slots, std::uint64_t position) noexcept {
    const std::uint64_t mixed = (position >> 9) * 0x9e37'79b9'7f4a'7c15ULL;
    return static_cast<std::size_t>(mixed >> 32) & (slots.size() - 1);
  }
  static std::size_t next(const std::vector<slot>& slots, std::size_t at) noexcept {
    return (at + 1) & (slots.size() - 1);
  }
  static void place(std::vector<slot>& slots, std::uint64_t position, block_index i) noexcept {
    std::size_t at = home(slots, position);
    while (slots[at].index != no_block) at = next(slots, at);
    slots[at] = {position, i};
  }
  void grow() {
    std::vector<slot> larger(slots_.size() * 2);
    for (const slot& s : slots_) {
      if (s.index != no_block) place(larger, s.position, s.index);
    }
    slots_.swap(larger);
  }

  std::vector<slot> slots_;
  std::size_t count_ = 0;
};

}  // namespace gpumem
