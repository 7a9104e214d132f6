/// Starts, observes and kills programs; of this process's environment they inherit only PATH.
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
  int exit_status = -1;  ///< 128 plus the signal if one ended it
  std::string out;
  std::string err;
};

/// A shell command in its own process group, which the destructor kills.
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

/// False if the condition does not become true within 60 s.
bool eventually(const std::function<bool()>& what);

std::vector<pid_t> children_of(pid_t pid);
/// Children, grandchildren, and so on.
std::vector<pid_t> descendants_of(pid_t pid);
std::string command_line_of(pid_t pid);
/// A variable in a process's environment; empty if it has none.
std::string variable_of(pid_t pid, const std::string& name);
/// The state's letter in /proc: `R`, `S`, `T`, `Z`; a space if the process does not exist.
char state_of(pid_t pid);

/// Stops the current unit of a sweep's process and returns its pid; 0 if the sweep ended first.
pid_t stop_a_unit_of(pid_t sweep);

std::uint64_t lines_in(const std::string& path);

class Sweep : public testing::Test {
 protected:
  /// Runs the built program to its end.
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
