#include "run_processes.hpp"

#include <poll.h>
#include <signal.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <fstream>

namespace gpumem::cli {
namespace {

namespace fs = std::filesystem;
using std::chrono::milliseconds;
using std::chrono::seconds;

bool maps(pid_t pid, const std::string& file) {
  std::ifstream lines{"/proc/" + std::to_string(pid) + "/maps"};
  for (std::string line; std::getline(lines, line);) {
    if (line.size() >= file.size() && line.compare(line.size() - file.size(), file.size(), file) == 0) return true;
  }
  return false;
}

/// Waits up to `time`. False if a process still runs then.
bool all_end_within(run_child_process& child, const std::string& records, milliseconds time) {
  const auto until = std::chrono::steady_clock::now() + time;
  while (!child.ended() || !live_recorded(records).empty()) {
    if (std::chrono::steady_clock::now() >= until) return false;
    if (!child.ended()) {
      child.ended_within(milliseconds{50});
    } else {
      ::usleep(50'000);
    }
  }
  return true;
}

void signal_recorded(const run_child_process& child, const std::string& records, int number) {
  for (const pid_t each : live_recorded(records)) {
    if (each != child.pid()) ::kill(each, number);
  }
}

}  // namespace

std::vector<pid_t> live_recorded(const std::string& records) {
  std::vector<pid_t> processes;
  std::error_code error;
  const fs::path folder = fs::canonical(records, error);
  for (const auto& entry : fs::directory_iterator{folder, error}) {
    if (entry.path().extension() != ".simcuda") continue;
    const auto pid = static_cast<pid_t>(std::strtol(entry.path().filename().c_str(), nullptr, 10));
    if (pid > 1 && std::find(processes.begin(), processes.end(), pid) == processes.end() &&
        maps(pid, entry.path().string())) {
      processes.push_back(pid);
    }
  }
  return processes;
}

run_child_process::run_child_process(pid_t pid)
    : pid_{pid}, file_{static_cast<int>(::syscall(SYS_pidfd_open, pid, 0))} {}

run_child_process::~run_child_process() {
  if (file_ >= 0) ::close(file_);
}

bool run_child_process::ended_within(milliseconds time) {
  if (ended_) return true;
  pollfd ended{file_, POLLIN, 0};
  if (file_ >= 0) static_cast<void>(::poll(&ended, 1, static_cast<int>(time.count())));
  const pid_t got = ::waitpid(pid_, &waited_, file_ >= 0 ? WNOHANG : 0);
  ended_ = got == pid_ || (got < 0 && errno != EINTR);
  return ended_;
}

void end_run(run_child_process& child, const std::string& records) {
  // Only to the command: a launcher passes SIGINT on, and a second SIGINT would interrupt the writing of figures.
  if (!child.ended()) ::kill(child.pid(), SIGINT);
  if (all_end_within(child, records, seconds{2})) return;
  signal_recorded(child, records, SIGINT);
  if (all_end_within(child, records, seconds{10})) return;
  for (const int number : {SIGTERM, SIGKILL}) {
    if (!child.ended()) ::kill(child.pid(), number);
    signal_recorded(child, records, number);
    if (all_end_within(child, records, seconds{10})) return;
  }
}

void end_left_behind(run_child_process& child, const std::string& records) {
  for (const int number : {SIGTERM, SIGKILL}) {
    signal_recorded(child, records, number);
    if (all_end_within(child, records, seconds{10})) return;
  }
}

}  // namespace gpumem::cli
