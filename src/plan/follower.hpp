/// Follows a program through its plan: which planned place, if any, the next request gets. Constant time for a request
/// that is expected, logarithmic for a departure.
///
/// A request that the plan expects next gets its place and the plan moves on. Any other is a departure: it gets none,
/// and the plan stays where it is, so that something inserted costs one departure. When the latest requests are found
/// together elsewhere in the plan, it goes on behind them; so does a step that leaves something out or takes another
/// branch. One thread at a time.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <unordered_map>
#include <utility>
#include <vector>

#include "rank_set.hpp"
#include "step.hpp"

namespace gpumem::plan {

class follower {
 public:
  explicit follower(std::shared_ptr<const step_plan> followed);

  /// The planned place of a request of `bytes`, a multiple of 512, on a stream: any number that stands for it.
  [[nodiscard]] std::optional<std::uint32_t> next(std::uint64_t bytes, std::uint64_t stream);
  /// Of a place, which several allocations that are never live together share: its offset, and its rank among all.
  [[nodiscard]] std::uint64_t offset(std::uint32_t place) const noexcept { return offsets_[place]; }

  /// A block, any number, begins at the place that the latest `next` gave; until it is gone. Throws with nothing
  /// changed.
  void placed(std::uint32_t place, std::uint32_t block);
  /// True where the plan gives memory of it to another stream next.
  bool gone(std::uint32_t block) noexcept;
  /// The block that was placed at `place` or, if there is none, at the next one below.
  [[nodiscard]] std::optional<std::uint32_t> placed_at_or_below(std::uint32_t place) const noexcept;

  /// True where so many of the latest requests were none of the plan's.
  static constexpr std::uint32_t lost_after = 64;
  [[nodiscard]] bool lost() const noexcept { return in_a_row_ >= lost_after; }
  [[nodiscard]] std::uint64_t height_bytes() const noexcept { return plan_->height_bytes; }
  [[nodiscard]] std::uint64_t metadata_bytes() const noexcept;

 private:
  static constexpr std::uint32_t remembered = 4;  ///< requests by which the plan is found again
  static constexpr std::uint32_t nobody = 0xffff'ffff;

  [[nodiscard]] std::uint64_t request(std::uint64_t bytes, std::uint64_t stream_number) const noexcept;
  std::uint64_t number_of(std::uint64_t stream);
  [[nodiscard]] std::uint64_t latest() const noexcept;
  void take(std::uint64_t what) noexcept;
  [[nodiscard]] std::optional<std::uint32_t> find_again() const noexcept;
  std::uint32_t go_behind(std::uint32_t at) noexcept;

  std::shared_ptr<const step_plan> plan_;
  std::vector<std::uint64_t> offsets_;   ///< the plan's, each once, ascending
  std::vector<std::uint32_t> place_of_;  ///< by allocation: its offset's index
  /// The latest requests up to each allocation as one number, and the allocation; ascending.
  std::vector<std::pair<std::uint64_t, std::uint32_t>> known_;
  std::unordered_map<std::uint64_t, std::uint64_t> stream_;  ///< numbered in order of first appearance
  std::uint64_t last_stream_ = 0;
  std::uint64_t last_number_ = nobody;
  rank_set taken_;
  std::vector<std::uint32_t> block_at_;  ///< by place
  struct placed_block {
    std::uint32_t place = nobody;
    bool changes_stream = false;
  };
  std::vector<placed_block> place_at_;  ///< by block
  std::vector<bool> changes_stream_;    ///< by allocation
  std::uint64_t history_[remembered] = {};
  std::uint32_t latest_given_ = 0;
  std::uint32_t cursor_ = 0;
  std::uint32_t in_a_row_ = 0;  ///< departures
};

}  // namespace gpumem::plan
