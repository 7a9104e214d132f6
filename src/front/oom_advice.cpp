#include "oom_advice.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <spawn.h>
#include <unistd.h>

#include <atomic>
#include <climits>
#include <csignal>
#include <cstring>
#include <string_view>
#include <vector>

#include "log.hpp"
#include "text.hpp"
#include "trusted_path.hpp"

extern "C" char** environ;

namespace gpumem {
namespace {

constexpr const char* tool = "gpumem";

/// Returns the environment without GPUMEM_* and LD_PRELOAD, so that the tool ignores the program's settings and writes
/// no recording.
std::vector<char*> variables_of_tool() {
  std::vector<char*> variables;
  for (char** entry = environ; entry != nullptr && *entry != nullptr; ++entry) {
    const std::string_view variable{*entry};
    const bool is_programs =
        variable.starts_with("GPUMEM_") || variable.starts_with("_GPUMEM_") || variable.starts_with("LD_PRELOAD=");
    if (!is_programs) variables.push_back(*entry);
  }
  variables.push_back(nullptr);
  return variables;
}

/// Returns 0 or an errno value.
int spawn(const std::string& recording) {
  std::string name{tool};
  std::string command{"why"};
  std::string file{recording};
  char* const arguments[] = {name.data(), command.data(), file.data(), nullptr};
  std::vector<char*> variables = variables_of_tool();
  posix_spawn_file_actions_t files;
  posix_spawnattr_t attributes;
  ::posix_spawn_file_actions_init(&files);
  ::posix_spawn_file_actions_addopen(&files, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
  ::posix_spawn_file_actions_adddup2(&files, STDERR_FILENO, STDOUT_FILENO);
  ::posix_spawnattr_init(&attributes);
  sigset_t none;
  sigset_t all;
  sigemptyset(&none);
  sigfillset(&all);
  ::posix_spawnattr_setsigmask(&attributes, &none);
  ::posix_spawnattr_setsigdefault(&attributes, &all);
  // A separate process group lets the tool finish when a signal ends the program's group.
  ::posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF | POSIX_SPAWN_SETPGROUP);
  pid_t child = 0;
  const int error = ::posix_spawnp(&child, tool, &files, &attributes, arguments, variables.data());
  ::posix_spawnattr_destroy(&attributes);
  ::posix_spawn_file_actions_destroy(&files);
  return error;
}

}  // namespace

void start_oom_advice(const std::string& recording) noexcept {
  static std::atomic_flag done = ATOMIC_FLAG_INIT;
  if (runs_secure() || done.test_and_set()) return;
  if (recording.empty()) {
    log_if_possible(
        [] { return std::string{"GPUMEM_OOM_ADVICE=1: nothing is recorded; expected GPUMEM_TRACE, a path"}; });
    return;
  }
  try {
    const int error = spawn(recording);
    if (error == 0) return;
    log_line(
        fmt::format("GPUMEM_OOM_ADVICE=1: gpumem cannot be started: {}; expected it in PATH. To do: gpumem advise {}",
                    std::strerror(error), printable(recording, PATH_MAX)));
  } catch (...) {
    log_if_possible([] { return std::string{"GPUMEM_OOM_ADVICE=1: the host has no memory to start gpumem"}; });
  }
}

}  // namespace gpumem
