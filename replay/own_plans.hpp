/// Plans for `planned` rows that name none. Each is made from the row's trace.
///
/// A plan is a file in memory, read by its path under /proc; no file is left on disk.
#pragma once

#include <chrono>
#include <string>
#include <vector>

#include "gpumem/status.hpp"
#include "policy_row.hpp"
#include "step.hpp"
#include "trace.hpp"

namespace gpumem::bench {

/// The trace's operations in the form of the planner.
[[nodiscard]] std::vector<plan::recorded_op> recorded_ops(const trace& recorded);

/// Whether the policy follows a plan and records none.
[[nodiscard]] bool only_follows_plan(const std::string& policy);
/// Whether the row has such a policy without a plan.
[[nodiscard]] bool needs_own_plan(const policy_row& row);

class own_plan {
 public:
  own_plan() = default;
  /// The best plan for `reuse` that the solver finds within the time limit and the step limit.
  static result<own_plan> make(const trace& recorded, std::chrono::milliseconds time_limit,
                               std::uint64_t most_steps = UINT64_MAX, stream_reuse reuse = stream_reuse::poll);
  ~own_plan();
  own_plan(own_plan&& source) noexcept;
  own_plan& operator=(own_plan&& source) noexcept;
  own_plan(const own_plan&) = delete;
  own_plan& operator=(const own_plan&) = delete;

  /// The plan's path, which this process can read during the lifetime of this object.
  [[nodiscard]] std::string path() const;
  /// The row with this plan.
  [[nodiscard]] policy_row followed_by(policy_row row) const;

 private:
  int file_ = -1;
};

}  // namespace gpumem::bench
