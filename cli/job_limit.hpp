// The limit of `gpumem run --limit`: one budget for all processes of the command.
#pragma once

#include "gpumem/settings.hpp"

namespace gpumem::cli {

/// Sets the variables that make the command's processes share one ledger for each card. Does nothing if there is no
/// limit, with `each_process`, or if a group or an outer `gpumem run` already shares one. `ready` is `bad_setting` if
/// the shared folder cannot be used. The destructor removes its ledgers, and those that earlier runs left behind.
class job_limit {
 public:
  explicit job_limit(const settings& config, bool each_process);
  ~job_limit();
  job_limit& operator=(job_limit&&) = delete;
  [[nodiscard]] const status& ready() const noexcept { return ready_; }

 private:
  std::string folder_;
  status ready_;
};

}  // namespace gpumem::cli
