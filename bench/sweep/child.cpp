#include "child.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>

#include "exec_words.hpp"
#include "owned_fd.hpp"

extern "C" char** environ;

namespace gpumem::bench::sweep {
namespace {

using clock = std::chrono::steady_clock;
constexpr std::size_t most_err = 2000;

status no_child(int error) {
  return {errc::device_error, fmt::format("no process can be started: {}", std::strerror(error))};
}

/// Starts the child. Returns 0 or the error number. Resets signals that the parent ignores or blocks.
int start(const std::string& program, std::vector<std::string> arguments, const std::array<int, 3>& ends,
          pid_t& child) {
  std::vector<std::string> variables;
  for (char** entry = environ; entry != nullptr && *entry != nullptr; ++entry) {
    if (!is_left_out(*entry)) variables.emplace_back(*entry);
  }
  arguments.insert(arguments.begin(), program);
  posix_spawn_file_actions_t files;
  posix_spawnattr_t how;
  ::posix_spawn_file_actions_init(&files);
  ::posix_spawnattr_init(&how);
  for (int k = 0; k < 3; ++k) ::posix_spawn_file_actions_adddup2(&files, ends[static_cast<std::size_t>(k)], k);
  sigset_t none;
  sigset_t usual;
  ::sigemptyset(&none);
  ::sigemptyset(&usual);
  for (const int each : {SIGPIPE, SIGINT, SIGTERM, SIGXFSZ}) ::sigaddset(&usual, each);
  ::posix_spawnattr_setsigmask(&how, &none);
  ::posix_spawnattr_setsigdefault(&how, &usual);
  ::posix_spawnattr_setflags(&how, POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF);
  const int error =
      ::posix_spawn(&child, program.c_str(), &files, &how, exec_words(arguments).data(), exec_words(variables).data());
  ::posix_spawn_file_actions_destroy(&files);
  ::posix_spawnattr_destroy(&how);
  return error;
}

/// Reads available bytes into `text`. False at the end of the stream.
bool take(int fd, std::string& text) {
  std::array<char, 16384> piece;
  const ssize_t got = ::read(fd, piece.data(), piece.size());
  if (got > 0) text.append(piece.data(), static_cast<std::size_t>(got));
  return got > 0 || (got < 0 && (errno == EINTR || errno == EAGAIN));
}

/// Exchanges data until both pipes are closed. False if the deadline passes first.
bool converse(pipe_ends& input_pipe, pipe_ends& output_pipe, pipe_ends& err, std::string_view input,
              clock::time_point deadline, child_outcome& outcome) {
  while (output_pipe.reader.get() >= 0 || err.reader.get() >= 0) {
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - clock::now()).count();
    if (left <= 0) return false;
    std::array<pollfd, 3> all{pollfd{output_pipe.reader.get(), POLLIN, 0}, pollfd{err.reader.get(), POLLIN, 0},
                              pollfd{input_pipe.writer.get(), POLLOUT, 0}};
    const int ready = ::poll(all.data(), all.size(), static_cast<int>(std::min<long>(left, 1'000'000)));
    if (ready < 0 && errno != EINTR) return false;
    if (ready <= 0) continue;
    if (all[0].revents != 0 && !take(output_pipe.reader.get(), outcome.output)) output_pipe.reader = owned_fd{};
    if (all[1].revents != 0 && !take(err.reader.get(), outcome.err)) err.reader = owned_fd{};
    if (outcome.err.size() > 2 * most_err) outcome.err.erase(0, outcome.err.size() - most_err);
    if (all[2].revents != 0) {
      const ssize_t sent = ::write(input_pipe.writer.get(), input.data(), input.size());
      if (sent > 0) input.remove_prefix(static_cast<std::size_t>(sent));
      if (input.empty() || (sent < 0 && errno != EINTR && errno != EAGAIN)) input_pipe.writer = owned_fd{};
    }
  }
  return true;
}

/// Waits until the deadline, then kills the child: closed pipes do not mean that it has ended.
void wait_for(pid_t child, clock::time_point deadline, child_outcome& outcome) {
  int ended = 0;
  rusage used{};
  for (;;) {
    const pid_t got = ::wait4(child, &ended, outcome.timed_out ? 0 : WNOHANG, &used);
    if (got == child) break;
    if (got < 0 && errno != EINTR) return;
    if (clock::now() >= deadline && !outcome.timed_out) {
      outcome.timed_out = true;
      ::kill(child, SIGKILL);
    }
    if (!outcome.timed_out) ::usleep(100);
  }
  if (WIFSIGNALED(ended)) outcome.signal = WTERMSIG(ended);
  if (WIFEXITED(ended)) outcome.exit_status = WEXITSTATUS(ended);
  const auto seconds = [](const timeval& time) {
    return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_usec) / 1e6;
  };
  outcome.processor_s = seconds(used.ru_utime) + seconds(used.ru_stime);
  outcome.peak_resident_bytes = static_cast<std::uint64_t>(used.ru_maxrss) * 1024;
}

}  // namespace

bool is_left_out(std::string_view entry) noexcept {
  const std::string_view name = entry.substr(0, entry.find('='));
  for (const std::string_view begin :
       {"GPUMEM_", "OMPI_", "PMIX_", "PMI_", "PRTE_", "MPI_", "HYDRA_", "HYDI_", "MPIR_CVAR_", "SLURM_", "ORTE_"}) {
    if (name.starts_with(begin)) return true;
  }
  for (const std::string_view word : {"RANK", "LOCAL_RANK", "WORLD_SIZE"}) {
    if (name == word) return true;
  }
  return false;
}

result<child_outcome> run_child(const std::string& program, const std::vector<std::string>& arguments,
                                const std::string& input, std::chrono::milliseconds time_limit) {
  pipe_ends input_pipe;
  pipe_ends output_pipe;
  pipe_ends err;
  if (!input_pipe.open() || !output_pipe.open() || !err.open()) return no_child(errno);
  pid_t child = 0;
  if (const int error =
          start(program, arguments, {input_pipe.reader.get(), output_pipe.writer.get(), err.writer.get()}, child);
      error != 0) {
    return no_child(error);
  }
  input_pipe.reader = owned_fd{};
  output_pipe.writer = owned_fd{};
  err.writer = owned_fd{};
  (void)::fcntl(input_pipe.writer.get(), F_SETFL, O_NONBLOCK);
  const clock::time_point deadline = clock::now() + time_limit;
  child_outcome got;
  if (!converse(input_pipe, output_pipe, err, input, deadline, got)) {
    got.timed_out = true;
    ::kill(child, SIGKILL);
  }
  wait_for(child, deadline, got);
  if (got.err.size() > most_err) got.err.erase(0, got.err.size() - most_err);
  return got;
}

}  // namespace gpumem::bench::sweep
