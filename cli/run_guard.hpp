// A process that ends a simulated run when its `gpumem` is killed.
#pragma once

#include <sys/types.h>

#include <string>

namespace gpumem::cli {

class run_guard {
 public:
  /// Starts the guard of the run with these records. Without one (no process can be made) a killed run leaves its
  /// program and this folder, as it does where the guard is killed, too.
  explicit run_guard(const std::string& records);
  /// The run is over, and the guard ends without a further deed.
  ~run_guard();
  run_guard& operator=(run_guard&&) = delete;

  /// The command of the run, a child of this process that it has not waited for.
  void watch(pid_t command) const;

 private:
  int channel_ = -1;
  pid_t guard_ = -1;
};

}  // namespace gpumem::cli
