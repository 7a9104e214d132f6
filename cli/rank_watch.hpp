// Detects ranks of a job that fail (end with a status other than 0, or are killed) while other ranks wait for them.
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

  /// `records` is the folder with the records; `read` reads them.
  rank_watch(std::string records, reader read) : records_{std::move(records)}, read_{std::move(read)} {}

  /// True if a rank failed and the run still goes on after `patience`.
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

/// The failed ranks, in this order: ranks that ended with an error, by time; killed ranks; ranks that gave up waiting
/// for another one. Take `live` (the running processes) before reading `processes`. If a rank has several processes,
/// only the latest counts.
std::vector<failed_rank> failed_ranks(const std::vector<simulated_process>& processes, const std::vector<pid_t>& live);

/// The warning that names the failed ranks; empty if none failed.
std::string failed_ranks_warning(const simulated_outcome& ran);

}  // namespace gpumem::cli
