/// What a search may cost: time, steps, or both.
///
/// A step is about as much work everywhere: one buffer looked at. A search that only steps can end gives the same
/// answer on every machine. Not synchronised.
#pragma once

#include <chrono>
#include <cstdint>

namespace gpumem::plan {

class search_budget {
 public:
  using clock = std::chrono::steady_clock;

  explicit search_budget(clock::time_point deadline, std::uint64_t most_steps = UINT64_MAX)
      : deadline_{deadline}, steps_left_{most_steps} {}

  void took(std::uint64_t steps) noexcept { steps_left_ -= steps < steps_left_ ? steps : steps_left_; }
  [[nodiscard]] bool spent() const { return steps_left_ == 0 || clock::now() >= deadline_; }

 private:
  clock::time_point deadline_;
  std::uint64_t steps_left_;
};

}  // namespace gpumem::plan
