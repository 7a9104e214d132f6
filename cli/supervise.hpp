// Runs the command as a child: passes signals on and returns its status.
#pragma once

#include <sys/types.h>

#include <csignal>
#include <string>
#include <vector>

#include "kept_status.hpp"

namespace gpumem::cli {

struct ended {
  int exec_errno = 0;   ///< why it could not be run; 0 if it ran
  int wait_status = 0;  ///< from waitpid, if it ran
};

/// Runs `path` with these arguments and waits for its end. Passes on signals from other processes; the terminal's
/// signals reach both processes anyway. The command dies with this process.
ended run_child(const std::string& path, const std::vector<std::string>& words);

/// In a new child: becomes the command, which dies with `parent`. Writes errno to `report` if it cannot.
[[noreturn]] void become(const std::string& path, char* const* words, const sigset_t& mask, const kept_status& status,
                         pid_t parent, int report);

/// Passes on signals that other processes send to this one.
void pass_signals_to(pid_t command);
void stop_passing_signals();

/// Ends as the child did: returns its exit status, or raises its signal again.
int status_of(const ended& how);

}  // namespace gpumem::cli
