// The command as a child: signals are passed on to it, and its status is this program's.
#pragma once

#include <string>
#include <vector>

namespace gpumem::cli {

struct ended {
  int exec_errno = 0;   ///< it could not be run at all
  int wait_status = 0;  ///< of waitpid, otherwise
};

/// Runs `path` with these words and waits for its end. A signal that another process sends to this one goes to the
/// command; what the terminal sends reaches both by itself. The command dies with this process.
ended run_child(const std::string& path, const std::vector<std::string>& words);

/// Ends as the child did: its exit status is returned, its signal is raised again.
int status_of(const ended& how);

}  // namespace gpumem::cli
