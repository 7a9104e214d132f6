/// The budget of a search: time, steps, or both.
///
/// A step is one examined buffer, about the same work everywhere. A search limited only in steps gives the same answer
/// on every machine. Not synchronised.
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
