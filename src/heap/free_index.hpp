// The free blocks of one owner and one class, ordered by (size, position): exact best fit.
//
// Bins by size: one for each multiple of 512 B up to 64 KiB, from there eight to a power of two. A bitmap finds the
// next bin that is not empty. Each bin is a treap (Seidel and Aragon 1996) whose nodes are the block records
// themselves, so nothing is allocated. Best fit is the smallest block that fits and, of equals, the lowest. Costs O(1)
// to find the bin and O(log n) expected in the bin's own blocks. The heap's owner locks.
#pragma once

#include <array>
#include <bit>
#include <cstdint>

#include "block.hpp"

namespace gpumem {

class free_index {
 public:
  free_index() { roots_.fill(no_block); }

  /// Requires a free block that is in no index.
  void insert(block_table& blocks, block_index index) noexcept;
  /// Requires that this index holds the block, with the `bytes` and `begin` that it had when it was inserted.
  void erase(block_table& blocks, block_index index) noexcept;
  /// The smallest block of at least `bytes`, lowest position first; `no_block` if none is that large.
  [[nodiscard]] block_index best_fit(const block_table& blocks, std::uint64_t bytes) const noexcept;
  /// Calls `visit` with the index of each block of at least `bytes`, smallest first.
  template <typename Visit>
  void visit_at_least(const block_table& blocks, std::uint64_t bytes, const Visit& visit) const {
    for (unsigned bin = next_bin(bin_of(bytes)); bin < bins; bin = next_bin(bin + 1)) {
      visit_subtree(blocks, roots_[bin], bytes, visit);
    }
  }
  /// The first block of at least `bytes`, in the order of size and address, that `accepts`; `no_block` if it accepts
  /// none.
  template <typename Accepts>
  [[nodiscard]] block_index first_where(const block_table& blocks, std::uint64_t bytes, const Accepts& accepts) const {
    block_index found = no_block;
    for (unsigned bin = next_bin(bin_of(bytes)); bin < bins && found == no_block; bin = next_bin(bin + 1)) {
      found = first_in_subtree(blocks, roots_[bin], bytes, accepts);
    }
    return found;
  }
  /// The block of at least `bytes` with the lowest address. Visits every such block, so it serves large requests only.
  [[nodiscard]] block_index lowest_fit(const block_table& blocks, std::uint64_t bytes) const noexcept;
  [[nodiscard]] block_index largest(const block_table& blocks) const noexcept;
  [[nodiscard]] bool empty() const noexcept { return count_ == 0; }
  [[nodiscard]] std::uint32_t size() const noexcept { return count_; }

  /// Checks every tree: order, bins and bitmap agree, and the index holds `size` blocks.
  [[nodiscard]] bool valid(const block_table& blocks) const;

 private:
  static constexpr unsigned unit_shift = 9;  // 512 B
  static constexpr unsigned exact_power = 7;
  static constexpr unsigned exact_bins = 1U << exact_power;
  static constexpr unsigned bins = exact_bins + 36 * 8;  // below 2^43 units, 2^52 B
  static constexpr unsigned words = (bins + 63) / 64;

  static unsigned bin_of(std::uint64_t bytes) noexcept {
    const std::uint64_t units = bytes >> unit_shift;
    if (units < exact_bins) return static_cast<unsigned>(units);
    const auto power = static_cast<unsigned>(std::bit_width(units)) - 1;
    return exact_bins + (power - exact_power) * 8 + static_cast<unsigned>(units >> (power - 3) & 7);
  }
  // A treap's priorities must be independent of its keys; a mixed record index is.
  static std::uint32_t priority(block_index index) noexcept {
    std::uint32_t x = index * 0x9e37'79b9U;
    x ^= x >> 15;
    x *= 0x85eb'ca6bU;
    return x ^ (x >> 13);
  }
  static bool before(const block& lhs, const block& rhs) noexcept {
    return lhs.bytes != rhs.bytes ? lhs.bytes < rhs.bytes : lhs.begin < rhs.begin;
  }
  template <typename Visit>
  static void visit_subtree(const block_table& blocks, block_index root, std::uint64_t bytes, const Visit& visit) {
    while (root != no_block) {
      const block& b = blocks[root];
      if (b.bytes >= bytes) {
        visit_subtree(blocks, b.in_index.left, bytes, visit);
        visit(root);
      }
      root = b.in_index.right;
    }
  }
  template <typename Accepts>
  static block_index first_in_subtree(const block_table& blocks, block_index root, std::uint64_t bytes,
                                      const Accepts& accepts) {
    for (; root != no_block; root = blocks[root].in_index.right) {
      if (blocks[root].bytes < bytes) continue;
      const block_index left = first_in_subtree(blocks, blocks[root].in_index.left, bytes, accepts);
      if (left != no_block) return left;
      if (accepts(root)) return root;
    }
    return no_block;
  }
  [[nodiscard]] unsigned next_bin(unsigned first_bin) const noexcept;  // `bins` if all are empty
  static bool subtree_valid(const block_table& blocks, block_index root, const block* low, const block* high,
                            std::uint32_t* seen);

  std::array<std::uint64_t, words> filled_{};
  std::array<block_index, bins> roots_;
  std::uint32_t count_ = 0;
};

}  // namespace gpumem
