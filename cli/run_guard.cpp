// The guard reads from a socket whose other end closes when `gpumem` dies, whatever kills it.
#include "run_guard.hpp"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>

#include "run_processes.hpp"

namespace gpumem::cli {
namespace {

constexpr char run_is_over = 'x';

bool read_all(int socket, void* buffer, std::size_t bytes) {
  for (std::size_t got = 0; got < bytes;) {
    const ssize_t n = ::read(socket, static_cast<char*>(buffer) + got, bytes - got);
    if (n == 0 || (n < 0 && errno != EINTR)) return false;
    if (n > 0) got += static_cast<std::size_t>(n);
  }
  return true;
}

bool has_ended(int process) {
  pollfd ended{process, POLLIN, 0};
  return process < 0 || ::poll(&ended, 1, 0) == 1;
}

/// The command, by its file, since its id may be another process's by now; and all processes with a record.
void end_processes(int command, const std::string& records) {
  constexpr int looks = 100;
  constexpr unsigned look_us = 50'000;
  for (const int number : {SIGTERM, SIGKILL}) {
    if (command >= 0) ::syscall(SYS_pidfd_send_signal, command, number, nullptr, 0);
    for (const pid_t each : live_recorded(records)) ::kill(each, number);
    for (int i = 0; i < looks; ++i) {
      if (has_ended(command) && live_recorded(records).empty()) return;
      ::usleep(look_us);
    }
  }
}

/// In a session of its own, so that what kills the run's process group leaves it alive. It holds none of the run's
/// files.
[[noreturn]] void guard(int socket, const std::string& records) {
  ::setsid();
  ::dup2(socket, STDIN_FILENO);
  const int nowhere = ::open("/dev/null", O_WRONLY);
  ::dup2(nowhere, STDOUT_FILENO);
  ::dup2(nowhere, STDERR_FILENO);
  ::close_range(STDERR_FILENO + 1, ~0U, 0);
  int command = -1;
  pid_t pid = 0;
  if (read_all(STDIN_FILENO, &pid, sizeof pid)) {
    command = static_cast<int>(::syscall(SYS_pidfd_open, pid, 0));
    char last = 0;
    if (read_all(STDIN_FILENO, &last, 1) && last == run_is_over) ::_exit(0);
  }
  end_processes(command, records);
  std::error_code ignored;
  std::filesystem::remove_all(records, ignored);
  ::_exit(0);
}

}  // namespace

run_guard::run_guard(const std::string& records) {
  int ends[2];
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0) return;
  guard_ = ::fork();
  if (guard_ == 0) {
    ::close(ends[1]);
    guard(ends[0], records);
  }
  ::close(ends[0]);
  channel_ = ends[1];
}

run_guard::~run_guard() {
  if (channel_ < 0) return;
  static_cast<void>(::send(channel_, &run_is_over, 1, MSG_NOSIGNAL));  // the guard may have been killed
  ::close(channel_);
  int status = 0;
  while (guard_ > 0 && ::waitpid(guard_, &status, 0) < 0 && errno == EINTR) {
  }
}

void run_guard::watch(pid_t command) const {
  if (channel_ >= 0) static_cast<void>(::send(channel_, &command, sizeof command, MSG_NOSIGNAL));
}

}  // namespace gpumem::cli
