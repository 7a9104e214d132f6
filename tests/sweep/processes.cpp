#include "processes.hpp"

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <sstream>
#include <thread>

namespace gpumem::bench::sweep {

background::background(const std::string& command, const test_folder& folder) : folder_{folder} {
  static int started = 0;
  out_ = "background" + std::to_string(++started);
  const std::string whole =
      "exec " + command + " >'" + folder.path(out_ + ".out") + "' 2>'" + folder.path(out_ + ".err") + "' </dev/null";
  pid_ = ::fork();
  if (pid_ == 0) {
    ::setpgid(0, 0);
    ::execl("/bin/sh", "sh", "-c", whole.c_str(), nullptr);
    ::_exit(127);
  }
  ::setpgid(pid_, pid_);
}

background::~background() {
  if (reaped_) return;
  for (const pid_t each : descendants_of(pid_)) ::kill(each, SIGKILL);
  ::kill(-pid_, SIGKILL);
  ::waitpid(pid_, &ended_, 0);
}

bool background::running() {
  if (!reaped_ && ::waitpid(pid_, &ended_, WNOHANG) == pid_) reaped_ = true;
  return !reaped_;
}

outcome background::wait() {
  if (!reaped_ && !eventually([&] { return !running(); })) ADD_FAILURE() << command_line_of(pid_) << " does not end";
  return {WIFEXITED(ended_) ? WEXITSTATUS(ended_) : 128 + WTERMSIG(ended_), content_of(folder_.path(out_ + ".out")),
          content_of(folder_.path(out_ + ".err"))};
}

bool eventually(const std::function<bool()>& what) {
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds{240};
  while (!what()) {
    if (std::chrono::steady_clock::now() > deadline) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds{2});
  }
  return true;
}

std::vector<pid_t> children_of(pid_t pid) {
  std::vector<pid_t> out;
  std::error_code ignored;
  for (const auto& task : std::filesystem::directory_iterator{"/proc/" + std::to_string(pid) + "/task", ignored}) {
    std::istringstream text{content_of((task.path() / "children").string())};
    for (pid_t each = 0; text >> each;) out.push_back(each);
  }
  return out;
}

std::vector<pid_t> descendants_of(pid_t pid) {
  std::vector<pid_t> out = children_of(pid);
  for (std::size_t i = 0; i < out.size(); ++i) {
    for (const pid_t each : children_of(out[i])) out.push_back(each);
  }
  return out;
}

std::string command_line_of(pid_t pid) {
  std::string text = content_of("/proc/" + std::to_string(pid) + "/cmdline");
  std::replace(text.begin(), text.end(), '\0', ' ');
  return text;
}

std::string variable_of(pid_t pid, const std::string& name) {
  std::istringstream text{content_of("/proc/" + std::to_string(pid) + "/environ")};
  for (std::string entry; std::getline(text, entry, '\0');) {
    if (entry.starts_with(name + "=")) return entry.substr(name.size() + 1);
  }
  return "";
}

char state_of(pid_t pid) {
  const std::string text = content_of("/proc/" + std::to_string(pid) + "/stat");
  const std::size_t end = text.rfind(") ");
  return end == std::string::npos ? ' ' : text[end + 2];
}

pid_t stop_a_unit_of(pid_t sweep) {
  pid_t stopped = 0;
  (void)eventually([&] {
    for (const pid_t each : children_of(sweep)) {
      if (command_line_of(each).find("gpumem_bench unit") == std::string::npos) continue;
      ::kill(each, SIGSTOP);
      for (int look = 0; look < 50 && state_of(each) != 'Z' && state_of(each) != ' '; ++look) {
        if (state_of(each) == 'T') {
          stopped = each;
          return true;
        }
        std::this_thread::sleep_for(std::chrono::milliseconds{1});
      }
    }
    return state_of(sweep) == ' ' || state_of(sweep) == 'Z';
  });
  return stopped;
}

std::uint64_t lines_in(const std::string& path) {
  const std::string text = content_of(path);
  return static_cast<std::uint64_t>(std::count(text.begin(), text.end(), '\n'));
}

std::string Sweep::command(const std::string& words, const std::string& environment) {
  return "env -i PATH=\"$PATH\" " + environment + " '" GPUMEM_BENCH_PROGRAM "' " + words;
}

outcome Sweep::bench(const std::string& words, const std::string& environment) {
  return background{command(words, environment), folder_}.wait();
}

void Sweep::expect_refused(const std::string& words, const std::string& reason, const std::string& environment) {
  const outcome got = bench(words, environment);
  EXPECT_EQ(got.exit_status, 2) << words;
  EXPECT_EQ(got.out, "") << words;
  EXPECT_THAT(got.err, testing::HasSubstr(reason)) << words;
}

std::string Sweep::small_manifest(const std::string& rest) {
  return folder_.write("manifest.json",
                       R"({"workloads":["training,ops=1000,peak=64MiB","serving,ops=1000,peak=64MiB",)"
                       R"("epochs,ops=1000,peak=64MiB"],"capacities":["120%live"],"devices":["sim:2GiB"],)"
                       R"("seeds":[1,2],"plan_steps":100000)" +
                           rest + "}");
}

std::string Sweep::merged(const std::string& folder, const std::string& words) {
  const std::string file = path("merged.json");
  std::filesystem::remove(file);
  const outcome got = bench("merge '" + folder + "' -o '" + file + "' " + words);
  EXPECT_EQ(got.exit_status, 0) << got.err;
  return content_of(file);
}

}  // namespace gpumem::bench::sweep
