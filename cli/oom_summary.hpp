// The summary of `gpumem run` after a command that ran out of device memory.
#pragma once

#include <string>

#include "gpumem/settings.hpp"

namespace gpumem::cli {

class oom_summary {
 public:
  /// Sets GPUMEM_OOM_FILE for the command, unless `config` names a file. Without a folder for it, prints no summary.
  explicit oom_summary(const settings& config);
  ~oom_summary();
  oom_summary& operator=(oom_summary&&) = delete;

  /// Prints the summary on stderr if a request failed.
  void print() const;

 private:
  std::string path_;
  bool own_ = false;
  std::size_t skipped_bytes_ = 0;  ///< length of the file before the command began
};

}  // namespace gpumem::cli
