// Finds the place that a plan gives a request: an offset in the plan's segment, the only segment of class 0.
//
// Reads the heap and changes nothing; the caller orders streams, merges blocks and carves the request.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "heap.hpp"
#include "plan_matcher.hpp"

namespace gpumem {

class plan_cursor {
 public:
  /// `plan` may be null; then `follows` is false.
  explicit plan_cursor(std::shared_ptr<const plan::step_plan> plan)
      : matcher_{plan != nullptr ? std::make_unique<plan::plan_matcher>(std::move(plan)) : nullptr} {}

  [[nodiscard]] bool follows() const noexcept { return matcher_ != nullptr; }

  // The functions below, except `ended` and `metadata_bytes`, require `follows()`.
  struct place {
    std::uint32_t number = 0;
    std::uint64_t begin = 0;
  };
  /// Returns the place of the next request. Empty if the request departs from the plan, or no segment is large enough.
  [[nodiscard]] std::optional<place> next(const heap& pool_heap, std::uint64_t bytes, std::uint64_t stream);

  /// An owner of free blocks that a place touches, and their latest epoch.
  struct other {
    owner_id owner = idle_owner;
    std::uint64_t epoch = 0;
    friend bool operator==(const other&, const other&) = default;
  };
  /// The blocks that a place touches.
  struct blocks {
    block_index first = no_block;     ///< no_block if one of the blocks is not free
    bool several = false;             ///< the place touches more blocks than `first`
    std::vector<other> other_owners;  ///< owners except `owner` and idle_owner, up to the first block that is not free
  };
  [[nodiscard]] blocks find(const heap& pool_heap, const place& target, std::uint64_t bytes, owner_id owner) const;

  /// Notes that `block` begins at `target`, to speed up later searches. Ignored if host memory runs out.
  void placed(const place& target, block_index block) noexcept;
  /// Notes that `block` has ended. True if the plan next gives some of its memory to another stream.
  bool ended(block_index block) noexcept { return matcher_ != nullptr && matcher_->ended(block); }
  /// True if the latest `lost_after` requests all departed from the plan.
  [[nodiscard]] bool lost() const noexcept { return matcher_->lost(); }
  static constexpr std::uint32_t lost_after = plan::plan_matcher::lost_after;
  [[nodiscard]] std::uint64_t metadata_bytes() const noexcept {
    return matcher_ != nullptr ? matcher_->metadata_bytes() : 0;
  }

 private:
  [[nodiscard]] bool has_segment(const heap& pool_heap) noexcept;

  std::unique_ptr<plan::plan_matcher> matcher_;
  segment_index segment_ = 0;
  std::uint64_t begin_ = 0;  // address of the plan's segment; 0 if none exists yet
};

}  // namespace gpumem
