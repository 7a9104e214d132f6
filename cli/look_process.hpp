// Looks at the machine in a separate process, because NVML can hang, and because a look may fork, which a program with
// threads must not do.
#pragma once

#include <atomic>
#include <nlohmann/json.hpp>

#include "gpumem/status.hpp"

namespace gpumem::cli {

class look_process {
 public:
  /// Runs `gpumem top --once --json` and stores the JSON that it prints in `answer`. Kills it after 30 s or when `stop`
  /// is called. One call at a time.
  status run(nlohmann::json& answer);

  /// Ends the current `run`, and makes later ones end at once. Any thread.
  void stop() noexcept { stopped_ = true; }
  [[nodiscard]] bool stopped() const noexcept { return stopped_; }

 private:
  std::atomic<bool> stopped_{false};
};

}  // namespace gpumem::cli
