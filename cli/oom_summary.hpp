// What `gpumem run` says at the end of a command that ran out of device memory.
#pragma once

#include <string>

#include "gpumem/settings.hpp"

namespace gpumem::cli {

class oom_summary {
 public:
  /// Names a file to the command by GPUMEM_OOM_FILE, unless `with` has one; without a folder to put it into there is no
  /// summary.
  explicit oom_summary(const settings& with);
  ~oom_summary();
  oom_summary(const oom_summary&) = delete;
  oom_summary& operator=(const oom_summary&) = delete;

  /// On stderr; nothing where nothing failed.
  void print() const;

 private:
  std::string path_;
  bool own_ = false;
  std::size_t skipped_bytes_ = 0;  ///< of a file that was there
};

}  // namespace gpumem::cli
