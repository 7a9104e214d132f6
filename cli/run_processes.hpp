// Finds and ends the processes of a simulated run.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <string>
#include <vector>

namespace gpumem::cli {

/// The live processes with a record in this folder. Checks that the process has its record mapped, so that a process
/// with a reused pid is not taken for the one that wrote the record.
std::vector<pid_t> live_recorded(const std::string& records);

/// The command, as a child of this process.
class run_child_process {
 public:
  explicit run_child_process(pid_t pid);
  ~run_child_process();
  run_child_process& operator=(run_child_process&&) = delete;

  /// Waits up to `time`. False if the command still runs then, or if a signal interrupted the wait.
  bool ended_within(std::chrono::milliseconds time);
  [[nodiscard]] pid_t pid() const noexcept { return pid_; }
  [[nodiscard]] bool ended() const noexcept { return ended_; }
  [[nodiscard]] int waited() const noexcept { return waited_; }  ///< waitpid's status; requires `ended`

 private:
  pid_t pid_;
  int file_;  ///< pidfd; -1 if the kernel has none: every wait then lasts until the command ends
  bool ended_ = false;
  int waited_ = 0;
};

/// Ends the command and every process with a record. Sends SIGINT first, so that Python can write its figures, then
/// SIGTERM and SIGKILL.
void end_run(run_child_process& child, const std::string& records);

/// Ends the processes that the command left behind: SIGTERM, then SIGKILL.
void end_left_behind(run_child_process& child, const std::string& records);

}  // namespace gpumem::cli
