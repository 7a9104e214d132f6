/// A set of small numbers that finds the next lower member in a fixed number of steps. It is a bitmap in 64-bit words,
/// with levels of bitmaps above it that mark the nonempty words below. Not synchronised.
#pragma once

#include <array>
#include <bit>
#include <cstdint>
#include <optional>
#include <vector>

namespace gpumem::plan {

class rank_set {
 public:
  /// For numbers below `count`, at most 2^30.
  explicit rank_set(std::uint32_t count = 0) {
    for (auto& level : levels_) {
      count = count / 64 + 1;
      level.assign(count, 0);
    }
  }
  void add(std::uint32_t rank) noexcept {
    for (auto& level : levels_) {
      level[rank / 64] |= std::uint64_t{1} << rank % 64;
      rank /= 64;
    }
  }
  void remove(std::uint32_t rank) noexcept {
    for (auto& level : levels_) {
      level[rank / 64] &= ~(std::uint64_t{1} << rank % 64);
      if (level[rank / 64] != 0) return;
      rank /= 64;
    }
  }
  /// The greatest member that is at most `rank`.
  [[nodiscard]] std::optional<std::uint32_t> at_or_below(std::uint32_t rank) const noexcept {
    for (std::size_t level = 0; level < levels_.size(); ++level) {
      const std::uint64_t bits = levels_[level][rank / 64] & (~std::uint64_t{0} >> (63 - rank % 64));
      if (bits != 0) {
        rank = rank / 64 * 64 + top(bits);
        while (level-- > 0) rank = rank * 64 + top(levels_[level][rank]);
        return rank;
      }
      if (rank < 64) return std::nullopt;
      rank = rank / 64 - 1;
    }
    return std::nullopt;
  }

 private:
  static std::uint32_t top(std::uint64_t word) noexcept {
    return 63 - static_cast<std::uint32_t>(std::countl_zero(word));
  }

  std::array<std::vector<std::uint64_t>, 5> levels_;  // 64^5 = 2^30
};

}  // namespace gpumem::plan
