// Keeps the status of this program's children, which the kernel drops if the parent left SIGCHLD ignored.
#pragma once

#include <csignal>

namespace gpumem::cli {

/// SIGCHLD has its default action from here on. A child gets the inherited one back by `restore`.
class kept_status {
 public:
  kept_status() noexcept {
    struct sigaction standard {};
    standard.sa_handler = SIG_DFL;
    ::sigaction(SIGCHLD, &standard, &inherited_);
  }
  void restore() const noexcept { ::sigaction(SIGCHLD, &inherited_, nullptr); }

 private:
  struct sigaction inherited_ {};
};

}  // namespace gpumem::cli
