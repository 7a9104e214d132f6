// Runs the command as a child: passes signals on and returns its status.
#pragma once

#include <string>
#include <vector>

namespace gpumem::cli {

struct ended {
  int exec_errno = 0;   ///< why it could not be run; 0 if it ran
  int wait_status = 0;  ///< from waitpid, if it ran
};

/// Runs `path` with these arguments and waits for its end. Passes on signals from other processes; the terminal's
/// signals reach both processes anyway. The command dies with this process.
ended run_child(const std::string& path, const std::vector<std::string>& words);

/// Ends as the child did: returns its exit status, or raises its signal again.
int status_of(const ended& how);

}  // namespace gpumem::cli
