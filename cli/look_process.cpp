#include "look_process.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstring>
#include <string>

#include "owned_fd.hpp"

extern "C" char** environ;

namespace gpumem::cli {
namespace {

using clock = std::chrono::steady_clock;
constexpr std::chrono::seconds time_limit{30};
constexpr std::chrono::milliseconds between_checks{200};

/// Starts the child. Returns 0 or the error number. The child leads its own process group and has default signals.
int start(int output, pid_t& child) {
  std::array<std::string, 4> words{"gpumem", "top", "--once", "--json"};
  std::array<char*, 5> arguments{words[0].data(), words[1].data(), words[2].data(), words[3].data(), nullptr};
  posix_spawn_file_actions_t files;
  posix_spawnattr_t how;
  ::posix_spawn_file_actions_init(&files);
  ::posix_spawnattr_init(&how);
  ::posix_spawn_file_actions_addopen(&files, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
  ::posix_spawn_file_actions_adddup2(&files, output, STDOUT_FILENO);
  sigset_t none;
  sigset_t usual;
  ::sigemptyset(&none);
  ::sigemptyset(&usual);
  for (const int each : {SIGPIPE, SIGINT, SIGTERM}) ::sigaddset(&usual, each);
  ::posix_spawnattr_setsigmask(&how, &none);
  ::posix_spawnattr_setsigdefault(&how, &usual);
  ::posix_spawnattr_setpgroup(&how, 0);
  ::posix_spawnattr_setflags(&how, POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF | POSIX_SPAWN_SETPGROUP);
  const int error = ::posix_spawn(&child, "/proc/self/exe", &files, &how, arguments.data(), environ);
  ::posix_spawn_file_actions_destroy(&files);
  ::posix_spawnattr_destroy(&how);
  return error;
}

/// Appends the pipe's contents to `text` until the other end closes. False if `stopped` is set or time runs out first.
bool read_all(int fd, const std::atomic<bool>& stopped, std::string& text) {
  const clock::time_point deadline = clock::now() + time_limit;
  for (;;) {
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - clock::now());
    if (left.count() <= 0 || stopped) return false;
    pollfd waits{fd, POLLIN, 0};
    if (::poll(&waits, 1, static_cast<int>(std::min(left, between_checks).count())) <= 0) continue;
    std::array<char, 16384> piece;
    const ssize_t got = ::read(fd, piece.data(), piece.size());
    if (got == 0) return true;
    if (got > 0) text.append(piece.data(), static_cast<std::size_t>(got));
    if (got < 0 && errno != EINTR) return false;
  }
}

}  // namespace

status look_process::run(nlohmann::json& answer) {
  pipe_ends output;
  if (!output.open()) {
    return {errc::device_error, fmt::format("no pipe can be made: {}", std::strerror(errno))};
  }
  pid_t child = 0;
  if (const int error = start(output.writer.get(), child); error != 0) {
    return {errc::device_error, fmt::format("no process can be started: {}", std::strerror(error))};
  }
  output.writer = owned_fd{};
  std::string text;
  const bool whole = read_all(output.reader.get(), stopped_, text);
  ::kill(-child, SIGKILL);
  while (::waitpid(child, nullptr, 0) < 0 && errno == EINTR) {
  }
  if (!whole) return {errc::device_error, fmt::format("gpumem top --json did not end within {} s", time_limit.count())};
  answer = nlohmann::json::parse(text, nullptr, false);
  if (answer.is_object() && answer.value("schema", 0) == 1) return {};
  return {errc::device_error, fmt::format("gpumem top --json printed {} bytes that are no look", text.size())};
}

}  // namespace gpumem::cli
