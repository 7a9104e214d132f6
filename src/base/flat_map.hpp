/// A map from 64-bit keys to 32-bit numbers: open addressing with linear probing in one array, at most half full.
///
/// Deletion shifts entries back, so there are no tombstones, and a map that stopped growing never allocates again. For
/// a few keys (streams, graphs) with frequent lookups; the owner locks.
#pragma once

#include <cstdint>
#include <vector>

namespace gpumem {

class flat_map {
 public:
  static constexpr std::uint32_t none = 0xffff'ffff;

  flat_map() : slots_(16) {}

  /// Ensures that the next `insert` takes no memory.
  void make_room() {
    if ((count_ + 1) * 2 > slots_.size()) grow();
  }
  /// Requires that `key` is absent and that `value` is not `none`.
  void insert(std::uint64_t key, std::uint32_t value) {
    make_room();
    place(slots_, {key, value});
    ++count_;
  }
  [[nodiscard]] std::uint32_t find(std::uint64_t key) const noexcept {
    std::size_t at = home(slots_, key);
    while (slots_[at].value != none && slots_[at].key != key) at = next(slots_, at);
    return slots_[at].value;
  }
  /// Does nothing if `key` is absent.
  void erase(std::uint64_t key) noexcept {
    std::size_t hole = home(slots_, key);
    while (slots_[hole].key != key || slots_[hole].value == none) {
      if (slots_[hole].value == none) return;
      hole = next(slots_, hole);
    }
    for (std::size_t at = next(slots_, hole); slots_[at].value != none; at = next(slots_, at)) {
      // An entry may move into the hole if the hole lies between its home slot and its current slot.
      const std::size_t from_home = (at - home(slots_, slots_[at].key)) & (slots_.size() - 1);
      const std::size_t from_hole = (at - hole) & (slots_.size() - 1);
      if (from_home >= from_hole) {
        slots_[hole] = slots_[at];
        hole = at;
      }
    }
    slots_[hole].value = none;
    --count_;
  }
  [[nodiscard]] std::size_t size() const noexcept { return count_; }
  [[nodiscard]] std::uint64_t bytes() const noexcept { return slots_.size() * sizeof(slot); }

 private:
  struct slot {
    std::uint64_t key = 0;
    std::uint32_t value = none;
  };

  static std::size_t home(const std::vector<slot>& slots, std::uint64_t key) noexcept {
    return static_cast<std::size_t>((key * 0x9e37'79b9'7f4a'7c15ULL) >> 32) & (slots.size() - 1);
  }
  static std::size_t next(const std::vector<slot>& slots, std::size_t at) noexcept {
    return (at + 1) & (slots.size() - 1);
  }
  static void place(std::vector<slot>& slots, const slot& s) noexcept {
    std::size_t at = home(slots, s.key);
    while (slots[at].value != none) at = next(slots, at);
    slots[at] = s;
  }
  void grow() {
    std::vector<slot> larger(slots_.size() * 2);
    for (const slot& s : slots_) {
      if (s.value != none) place(larger, s);
    }
    slots_.swap(larger);
  }

  std::vector<slot> slots_;
  std::size_t count_ = 0;
};

}  // namespace gpumem
