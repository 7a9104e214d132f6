/// Programs that a test starts, looks at and kills; nothing of this process's environment but PATH goes to them.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/types.h>

#include <functional>
#include <string>
#include <vector>

#include "test_files.hpp"

namespace gpumem::bench::sweep {

struct outcome {
  int exit_status = -1;  ///< 128 and the signal where one ended it
  std::string out;
  std::string err;
};

/// A shell command in a process group of its own, which goes with the object.
class background {
 public:
  background(const std::string& command, const test_folder& folder);
  ~background();
  background(const background&) = delete;
  background& operator=(const background&) = delete;
  [[nodiscard]] pid_t pid() const noexcept { return pid_; }
  [[nodiscard]] bool running();
  outcome wait();

 private:
  const test_folder& folder_;
  std::string out_;
  pid_t pid_ = -1;
  int ended_ = 0;
  bool reaped_ = false;
};

/// False where it is not so within 60 s.
bool eventually(const std::function<bool()>& what);

std::vector<pid_t> children_of(pid_t pid);
/// Children, their children, and so on.
std::vector<pid_t> descendants_of(pid_t pid);
std::string command_line_of(pid_t pid);
/// Of a variable in the process's environment; empty where it has none.
std::string variable_of(pid_t pid, const std::string& name);
/// The state's letter in /proc: `R`, `S`, `T`, `Z`; a space where there is no such process.
char state_of(pid_t pid);

/// The unit that a sweep's process is at, stopped: 0 where it ended first.
pid_t stop_a_unit_of(pid_t sweep);

std::uint64_t lines_in(const std::string& path);

class Sweep : public testing::Test {
 protected:
  /// The built program, to its end.
  outcome bench(const std::string& words, const std::string& environment = "");
  static std::string command(const std::string& words, const std::string& environment = "");
  void expect_refused(const std::string& words, const std::string& reason, const std::string& environment = "");
  /// Units that take some milliseconds each: `workloads` x 7 policies x 2 seeds.
  std::string small_manifest(const std::string& rest = "");
  /// The merged result of a folder.
  std::string merged(const std::string& folder, const std::string& words = "");
  [[nodiscard]] std::string path(const std::string& name) const { return folder_.path(name); }
  test_folder folder_;
};

}  // namespace gpumem::bench::sweep
