// The processes of a simulated run, and how all of them are ended.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <string>
#include <vector>

namespace gpumem::cli {

/// The live processes with a record in this folder. A process keeps its record mapped: no other process is mistaken for
/// one that has ended, even if it has its id.
std::vector<pid_t> live_recorded(const std::string& records);

/// The command, as a child of this process.
class run_child_process {
 public:
  explicit run_child_process(pid_t pid);
  ~run_child_process();
  run_child_process(const run_child_process&) = delete;
  run_child_process& operator=(const run_child_process&) = delete;

  /// False: it runs on after that time, or a signal came first.
  bool ended_within(std::chrono::milliseconds time);
  [[nodiscard]] pid_t pid() const noexcept { return pid_; }
  [[nodiscard]] bool ended() const noexcept { return ended_; }
  [[nodiscard]] int waited() const noexcept { return waited_; }  ///< of waitpid, once it has ended

 private:
  pid_t pid_;
  int file_;  ///< of the process; -1: the kernel has none, and every wait lasts until its end
  bool ended_ = false;
  int waited_ = 0;
};

/// Ends the command and every process with a record as from the keyboard, so that Python leaves its own figures; then
/// with less patience.
void end_run(run_child_process& child, const std::string& records);

/// Ends the processes that the command has left behind: SIGTERM, then SIGKILL.
void end_left_behind(run_child_process& child, const std::string& records);

}  // namespace gpumem::cli
