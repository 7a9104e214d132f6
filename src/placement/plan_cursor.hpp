// Where a plan puts a request: in the plan's segment, the only one of class 0, at an offset that the plan names.
//
// Reads the heap and changes nothing; the caller orders streams, unites blocks and cuts the request out.
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
  /// Follows nothing where there is no plan.
  explicit plan_cursor(std::shared_ptr<const plan::step_plan> plan)
      : matcher_{plan != nullptr ? std::make_unique<plan::plan_matcher>(std::move(plan)) : nullptr} {}

  [[nodiscard]] bool follows() const noexcept { return matcher_ != nullptr; }

  // The rest requires that it follows one, but for `gone` and `metadata_bytes`.
  struct place {
    std::uint32_t number = 0;
    std::uint64_t begin = 0;
  };
  /// The place of the next request; none where it departs from the plan, or no segment is large enough for the plan.
  [[nodiscard]] std::optional<place> next(const heap& pool_heap, std::uint64_t bytes, std::uint64_t stream);

  /// An owner of blocks that a place touches, and the latest epoch of these.
  struct other {
    owner_id owner = idle_owner;
    std::uint64_t epoch = 0;
    friend bool operator==(const other&, const other&) = default;
  };
  /// The blocks that a place touches.
  struct blocks {
    block_index first = no_block;     ///< none where one of them is not free
    bool several = false;             ///< more than `first`
    std::vector<other> other_owners;  ///< owners besides `o` and nobody, up to the block that is not free
  };
  [[nodiscard]] blocks find(const heap& pool_heap, const place& target, std::uint64_t bytes, owner_id owner) const;

  /// The block begins there now. Speeds up later searches; without host memory for it, it does not.
  void placed(const place& target, block_index block) noexcept;
  /// True where the plan gives memory of that block to another stream next.
  bool ended(block_index block) noexcept { return matcher_ != nullptr && matcher_->ended(block); }
  /// True where so many requests in a row, `lost_after`, were none of the plan's.
  [[nodiscard]] bool lost() const noexcept { return matcher_->lost(); }
  static constexpr std::uint32_t lost_after = plan::plan_matcher::lost_after;
  [[nodiscard]] std::uint64_t metadata_bytes() const noexcept {
    return matcher_ != nullptr ? matcher_->metadata_bytes() : 0;
  }

 private:
  [[nodiscard]] bool has_segment(const heap& pool_heap) noexcept;

  std::unique_ptr<plan::plan_matcher> matcher_;
  segment_index segment_ = 0;
  std::uint64_t begin_ = 0;  // of the plan's segment; 0: there is none yet
};

}  // namespace gpumem
