/// Follows a program through its plan: finds the planned place of the next request. Constant time for an expected
/// request, logarithmic for a departure.
///
/// A request that the plan expects next gets its place, and the position advances. Any other request is a departure: it
/// gets no place, and the position stays, so that an inserted request costs one departure. If the latest requests occur
/// together elsewhere in the plan, the position moves behind them, for example after omitted requests or another
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

class plan_matcher {
 public:
  explicit plan_matcher(std::shared_ptr<const step_plan> followed);

  /// The planned place of a request of `bytes`, a multiple of 512, on `stream`, any number that identifies the stream.
  [[nodiscard]] std::optional<std::uint32_t> next(std::uint64_t bytes, std::uint64_t stream);
  /// A place: its offset, and its rank among all. Allocations that are never live together may share one.
  [[nodiscard]] std::uint64_t offset(std::uint32_t place) const noexcept { return offsets_[place]; }

  /// Notes that `block`, any number, lies at the place from the latest `next`, until `ended`. Throws without changes.
  void placed(std::uint32_t place, std::uint32_t block);
  /// Notes that `block` has ended. True if the plan next gives some of its memory to another stream.
  bool ended(std::uint32_t block) noexcept;
  /// The block placed at `place`, or if there is none, at the next lower place.
  [[nodiscard]] std::optional<std::uint32_t> placed_at_or_below(std::uint32_t place) const noexcept;

  static constexpr std::uint32_t lost_after = 64;
  /// True after `lost_after` departures in a row.
  [[nodiscard]] bool lost() const noexcept { return in_a_row_ >= lost_after; }
  [[nodiscard]] std::uint64_t height_bytes() const noexcept { return plan_->height_bytes; }
  [[nodiscard]] std::uint64_t metadata_bytes() const noexcept;

 private:
  static constexpr std::uint32_t remembered = 4;  ///< requests that identify a position in the plan
  static constexpr std::uint32_t nobody = 0xffff'ffff;

  [[nodiscard]] std::uint64_t request(std::uint64_t bytes, std::uint64_t stream_number) const noexcept;
  std::uint64_t number_of(std::uint64_t stream);
  [[nodiscard]] std::uint64_t latest() const noexcept;
  void take(std::uint64_t key) noexcept;
  [[nodiscard]] std::optional<std::uint32_t> find_again() const noexcept;
  std::uint32_t go_behind(std::uint32_t position) noexcept;

  std::shared_ptr<const step_plan> plan_;
  std::vector<std::uint64_t> offsets_;   ///< distinct offsets of the plan, ascending
  std::vector<std::uint32_t> place_of_;  ///< by allocation: index of its offset
  /// For each allocation, the latest requests up to it as one number, and its index; ascending.
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
  std::uint32_t in_a_row_ = 0;  ///< consecutive departures
};

}  // namespace gpumem::plan
