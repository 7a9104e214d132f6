// Ranks of a job that end by themselves with a status other than 0, or are killed: the others wait for them in vain.
#pragma once

#include <chrono>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "simulated_run.hpp"

namespace gpumem::cli {

class rank_watch {
 public:
  using clock = std::chrono::steady_clock;

  /// Time for the program's launcher to end the other ranks itself.
  static constexpr std::chrono::seconds patience{30};

  using reader = std::function<std::vector<simulated_process>()>;

  /// `read` reads the records in the folder.
  rank_watch(std::string records, reader read) : records_{std::move(records)}, read_{std::move(read)} {}

  /// Whether a rank has failed and the run goes on without it.
  bool look(const std::vector<simulated_process>& processes, clock::time_point time = clock::now());
  [[nodiscard]] bool is_lost() const noexcept { return is_lost_; }
  [[nodiscard]] const std::vector<failed_rank>& failed() const noexcept { return failed_; }

 private:
  std::string records_;
  reader read_;
  std::vector<failed_rank> failed_;
  clock::time_point since_{};
  bool is_lost_ = false;
};

/// The failed ranks of the records, ordered: those that failed by themselves, by time; killed ones; those that waited
/// for another rank. `live` has the processes that ran before the records were read. A later process of the same rank
/// replaces an earlier one.
std::vector<failed_rank> failed_ranks(const std::vector<simulated_process>& processes, const std::vector<pid_t>& live);

/// Names them; empty: none failed.
std::string failed_ranks_warning(const simulated_outcome& ran);

}  // namespace gpumem::cli
