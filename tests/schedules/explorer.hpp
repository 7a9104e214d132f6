/// Explores schedules of scenarios, and shrinks a failing one.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "rule.hpp"
#include "scenario.hpp"
#include "scheduler.hpp"

namespace gpumem::schedules {

/// A broken rule, and the schedule that broke it.
struct finding {
  violation broken;
  scenario program;
  std::vector<turn> turns;
  std::uint64_t seed = 0;
  std::uint64_t schedules = 0;  ///< number of schedules run so far, including this one

  [[nodiscard]] std::string to_string() const;
};

class explorer {
 public:
  /// Silences the log: injected faults would fill it.
  explorer();
  /// Runs the scenario under one schedule.
  std::optional<violation> run(const scenario& program, chooser& decides, std::vector<turn>* turns = nullptr,
                               std::string* trace = nullptr);
  /// Runs the schedule of a seed: half of the seeds choose at random, half by priorities.
  std::optional<violation> run_seed(const scenario& program, std::uint64_t seed, std::vector<turn>* turns = nullptr);

  /// Runs generated scenarios, one schedule for each seed, until one fails or `keep_on` is false.
  std::optional<finding> explore(topic subject, std::uint64_t first_seed,
                                 const std::function<bool(std::uint64_t)>& keep_on);
  /// Runs schedules of one scenario.
  std::optional<finding> explore(const scenario& program, std::uint64_t first_seed, std::uint64_t schedules);
  /// Removes operations and turns as long as the same rule is broken.
  finding shrink(finding found);

  /// The course of a failing schedule, one operation a line.
  std::string trace(const finding& found);

  [[nodiscard]] std::uint64_t points() const noexcept { return points_; }
  [[nodiscard]] std::uint64_t turns() const noexcept { return turns_; }

 private:
  scheduler threads_;
  std::uint64_t points_ = 0;
  std::uint64_t turns_ = 0;
};

}  // namespace gpumem::schedules
