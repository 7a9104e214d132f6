// The limit of `gpumem run --limit`: one budget for all processes of the command.
#pragma once

#include "gpumem/settings.hpp"

namespace gpumem::cli {

/// Sets the variables by which the processes of the command meet in one ledger for each card, if `with` has a limit and
/// neither a group nor an outer `gpumem run` covers them already. `bad_setting` if the shared folder cannot be used.
/// Removes its ledgers at the end, and those that ended runs left.
class job_limit {
 public:
  explicit job_limit(const settings& config, bool each_process);
  ~job_limit();
  job_limit(const job_limit&) = delete;
  job_limit& operator=(const job_limit&) = delete;
  [[nodiscard]] const status& ready() const noexcept { return ready_; }

 private:
  std::string folder_;
  status ready_;
};

}  // namespace gpumem::cli
