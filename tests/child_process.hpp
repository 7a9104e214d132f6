/// A forked child that runs a function and exits with its result.
#pragma once

#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>

namespace gpumem {

template <typename Body>
pid_t in_child(Body body) {
  const pid_t child = ::fork();
  if (child == 0) std::_Exit(body());
  return child;
}

/// Waits for the child's end. -1 if a signal ended it.
inline int exit_status_of(pid_t child) {
  int code = 0;
  ::waitpid(child, &code, 0);
  return WIFEXITED(code) ? WEXITSTATUS(code) : -1;
}

}  // namespace gpumem
