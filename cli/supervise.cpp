#include "supervise.hpp"

#include <fcntl.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <csignal>

#include "exec_words.hpp"

namespace gpumem::cli {
namespace {

constexpr std::array passed_on{SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2, SIGCONT};
std::atomic<pid_t> child{0};

// Ignores the terminal's signals: they reach the child anyway, because it is in the same foreground group.
void pass_on(int number, siginfo_t* info, void* /*context*/) {
  const int saved = errno;
  const bool sent_by_a_process = info != nullptr && info->si_code <= 0;
  if (const pid_t process = child.load(); process > 0 && sent_by_a_process) ::kill(process, number);
  errno = saved;
}

/// Signals that are ignored, as under nohup, stay ignored.
void handle_signals() {
  for (const int number : passed_on) {
    struct sigaction now {};
    if (::sigaction(number, nullptr, &now) == 0 && (now.sa_flags & SA_SIGINFO) == 0 && now.sa_handler == SIG_IGN)
      continue;
    struct sigaction ours {};
    ours.sa_sigaction = &pass_on;
    ours.sa_flags = SA_SIGINFO | SA_RESTART;
    ::sigaction(number, &ours, nullptr);
  }
}

}  // namespace

void become(const std::string& path, char* const* words, const sigset_t& mask, const kept_status& status, pid_t parent,
            int report) {
  status.restore();
  ::sigprocmask(SIG_SETMASK, &mask, nullptr);
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (::getppid() == parent) ::execvp(path.c_str(), words);  // execvp runs scripts without #! in the shell
  const int error = errno;
  static_cast<void>(!::write(report, &error, sizeof error));
  ::_exit(127);
}

void pass_signals_to(pid_t command) {
  child = command;
  handle_signals();
}

void stop_passing_signals() { child = 0; }

ended run_child(const std::string& path, const std::vector<std::string>& words) {
  std::vector<std::string> copies = words;
  std::vector<char*> pointers = exec_words(copies);
  std::array<int, 2> ends{};
  if (::pipe2(ends.data(), O_CLOEXEC) != 0) return {.exec_errno = errno};
  const kept_status status;
  sigset_t all;
  sigset_t before;
  sigfillset(&all);
  ::sigprocmask(SIG_SETMASK, &all, &before);
  const pid_t parent = ::getpid();
  const pid_t made = ::fork();
  if (made == 0) become(path, pointers.data(), before, status, parent, ends[1]);
  const int fork_errno = errno;
  ::close(ends[1]);
  if (made > 0) {
    pass_signals_to(made);
  }
  ::sigprocmask(SIG_SETMASK, &before, nullptr);
  ended how{.exec_errno = made > 0 ? 0 : fork_errno};
  int error = 0;
  if (::read(ends[0], &error, sizeof error) == sizeof error) how.exec_errno = error;
  ::close(ends[0]);
  while (made > 0 && ::waitpid(made, &how.wait_status, 0) < 0 && errno == EINTR) {
  }
  stop_passing_signals();
  return how;
}

int status_of(const ended& how) {
  if (WIFEXITED(how.wait_status)) return WEXITSTATUS(how.wait_status);
  const int number = WTERMSIG(how.wait_status);
  const rlimit no_core{.rlim_cur = 0, .rlim_max = 0};  // the child has already written one
  ::setrlimit(RLIMIT_CORE, &no_core);
  ::signal(number, SIG_DFL);
  ::raise(number);
  return 128 + number;
}

}  // namespace gpumem::cli
