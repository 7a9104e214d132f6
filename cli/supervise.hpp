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

/// Executes the command in a new child, which dies with `parent`. Writes errno to `report` on failure.
[[noreturn]] void become(const std::string& path, char* const* words, const sigset_t& mask, const kept_status& status,
                         pid_t parent, int report);

/// Passes on signals that other processes send to this one.
void pass_signals_to(pid_t command);
void stop_passing_signals();

/// Returns the child's exit status. If a signal ended the child, raises the same signal in this process.
int status_of(const ended& how);

}  // namespace gpumem::cli
