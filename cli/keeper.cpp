// The keeper is a subreaper: descendants whose parents end become its children, so it can wait for the last one.
//
// Two pipes connect it with `gpumem run`. On the first the keeper reports the command's pid, the result of exec and the
// wait status. The second closes when `gpumem run` has read the status or has died; if it has died, the keeper kills
// the command.
#include "keeper.hpp"

#include <fcntl.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <optional>

#include "exec_words.hpp"
#include "kept_status.hpp"

namespace gpumem::cli {
namespace {

bool send_word(int fd, int word) noexcept { return ::write(fd, &word, sizeof word) == sizeof word; }

std::optional<int> receive_word(int fd) noexcept {
  int word = 0;
  ssize_t got = 0;
  while ((got = ::read(fd, &word, sizeof word)) < 0 && errno == EINTR) {
  }
  return got == sizeof word ? std::optional{word} : std::nullopt;
}

/// Closes inherited files, so that the keeper does not keep the terminal or a pipe of the shell open.
void close_all_but(std::vector<int> kept) {
  const int nothing = ::open("/dev/null", O_RDWR | O_CLOEXEC);
  for (const int fd : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) {
    if (nothing >= 0 && std::find(kept.begin(), kept.end(), fd) == kept.end()) ::dup2(nothing, fd);
  }
  std::sort(kept.begin(), kept.end());
  unsigned first_open = STDERR_FILENO + 1;
  for (const int fd : kept) {
    const auto number = static_cast<unsigned>(fd);
    if (number > first_open) ::close_range(first_open, number - 1, 0);
    first_open = std::max(first_open, number + 1);
  }
  ::close_range(first_open, ~0U, 0);
}

int wait_status_of(const siginfo_t& info) noexcept {
  if (info.si_code == CLD_EXITED) return W_EXITCODE(info.si_status, 0);
  return info.si_status | (info.si_code == CLD_DUMPED ? WCOREFLAG : 0);
}

/// Whether the command has ended. Reaps all other children, but not the command, so that its pid is not reused.
bool has_ended(pid_t command, siginfo_t& info) noexcept {
  for (;;) {
    info = {};
    if (::waitid(P_ALL, 0, &info, WEXITED | WNOHANG | WNOWAIT) != 0 || info.si_pid == 0) return false;
    if (info.si_pid == command) return true;
    ::waitpid(info.si_pid, nullptr, 0);
  }
}

/// Waits for the command, and kills it if `gpumem run` dies first.
siginfo_t await_command(pid_t command, int run_lives, int signals) noexcept {
  siginfo_t info{};
  bool killed = false;
  while (!has_ended(command, info)) {
    std::array<pollfd, 2> events{{{.fd = signals, .events = POLLIN, .revents = 0},
                                  {.fd = killed ? -1 : run_lives, .events = POLLIN, .revents = 0}}};
    if (::poll(events.data(), events.size(), -1) < 0) continue;
    signalfd_siginfo taken{};
    if (events[0].revents != 0) static_cast<void>(!::read(signals, &taken, sizeof taken));
    if (events[1].revents == 0) continue;
    ::kill(command, SIGKILL);
    killed = true;
  }
  return info;
}

/// The keeper's process. Requires that all signals are blocked; the command gets the mask `before`.
[[noreturn]] void keep(const std::string& path, char* const* words, const sigset_t& before, const kept_status& status,
                       held_claims& claims, int report, int run_lives) {
  ::prctl(PR_SET_CHILD_SUBREAPER, 1);
  sigset_t child_ends;
  sigemptyset(&child_ends);
  sigaddset(&child_ends, SIGCHLD);
  const owned_fd signals{::signalfd(-1, &child_ends, SFD_CLOEXEC)};
  pipe_ends exec_report;
  const pid_t self = ::getpid();
  const pid_t command = signals.get() >= 0 && exec_report.open() ? ::fork() : -1;
  const int fork_errno = errno;
  if (command == 0) become(path, words, before, status, self, exec_report.writer.get());
  send_word(report, command);
  if (command < 0) {
    send_word(report, fork_errno);
    ::_exit(1);
  }
  claims.set_keeper(self, ::getppid());
  exec_report.writer = owned_fd{};
  send_word(report, receive_word(exec_report.reader.get()).value_or(0));
  close_all_but({report, run_lives, signals.get(), claims.descriptor()});
  const siginfo_t info = await_command(command, run_lives, signals.get());
  claims.set_keeper(self, self);  // `gpumem run` is about to end, and its pid may be reused
  send_word(report, wait_status_of(info));
  receive_word(run_lives);  // returns when `gpumem run` no longer passes signals on
  ::close(report);
  while (::wait(nullptr) > 0 || errno == EINTR) {
  }
  ::_exit(0);
}

}  // namespace

ended run_kept(const std::string& path, const std::vector<std::string>& words, held_claims& claims) {
  std::vector<std::string> copies = words;
  std::vector<char*> pointers = exec_words(copies);
  pipe_ends report;
  pipe_ends lives;
  if (!report.open() || !lives.open()) return {.exec_errno = errno};
  const kept_status status;
  sigset_t all;
  sigset_t before;
  sigfillset(&all);
  ::sigprocmask(SIG_SETMASK, &all, &before);
  const pid_t keeper = ::fork();
  if (keeper == 0) {
    report.reader = owned_fd{};
    lives.writer = owned_fd{};
    keep(path, pointers.data(), before, status, claims, report.writer.get(), lives.reader.get());
  }
  ended how{.exec_errno = keeper > 0 ? 0 : errno};
  report.writer = owned_fd{};
  lives.reader = owned_fd{};
  claims = held_claims{};  // only the keeper holds them from here on
  const int from_keeper = report.reader.get();
  const pid_t command = keeper > 0 ? receive_word(from_keeper).value_or(-1) : -1;
  if (command > 0) pass_signals_to(command);
  ::sigprocmask(SIG_SETMASK, &before, nullptr);
  if (keeper > 0) how.exec_errno = receive_word(from_keeper).value_or(0);
  if (command > 0) how.wait_status = receive_word(from_keeper).value_or(SIGKILL);  // the keeper was killed
  stop_passing_signals();
  return how;
}

}  // namespace gpumem::cli
