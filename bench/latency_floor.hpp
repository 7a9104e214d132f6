/// The floor of the machine under `latency`: what its cases would take if nothing were allocated.
#pragma once

#include <string>
#include <vector>

#include "latency_cases.hpp"
#include "latency_replay.hpp"
#include "latency_subjects.hpp"
#include "latency_worst.hpp"

namespace gpumem::bench {

/// What the floor's cases keep while they run.
class latency_floor {
 public:
  /// `loops` and the names of their traces stay where they are.
  void add(case_list& cases, const std::vector<unsigned>& threads, const std::vector<replay_loop>& loops,
           const std::vector<std::string>& names);
  [[nodiscard]] worst_case<empty_subject>* worst() { return worst_.get(); }

 private:
  empty_subject empty_;
  std::vector<std::unique_ptr<replayed<empty_subject>>> replays_;
  std::unique_ptr<worst_case<empty_subject>> worst_;
};

}  // namespace gpumem::bench
