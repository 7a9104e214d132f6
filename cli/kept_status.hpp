// Makes the exit status of children available: the kernel drops it if this program inherited an ignored SIGCHLD.
#pragma once

#include <csignal>

namespace gpumem::cli {

/// The constructor sets SIGCHLD to its default action; a child calls `restore` to get the inherited action back.
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
