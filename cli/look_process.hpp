// Looks at the machine in a process of its own: NVML can hang, and a look may fork, which a program with threads must
// not do.
#pragma once

#include <atomic>
#include <nlohmann/json.hpp>

#include "gpumem/status.hpp"

namespace gpumem::cli {

class look_process {
 public:
  /// Runs this program as `gpumem top --once --json` and stores the printed JSON in `answer`. Kills it after 30 s, or
  /// once `stop` was called. One call at a time.
  status run(nlohmann::json& answer);

  /// Ends the present run, and every later one at its begin. Any thread.
  void stop() noexcept { stopped_ = true; }
  [[nodiscard]] bool stopped() const noexcept { return stopped_; }

 private:
  std::atomic<bool> stopped_{false};
};

}  // namespace gpumem::cli
