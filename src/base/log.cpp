/// Writes whole lines to stderr or to a sink. The lock orders lines and guards the sink.
///
/// The state is never destroyed: lines may come from other threads or static destructors while the process exits.
#include "log.hpp"

#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <ctime>
#include <set>
#include <utility>

#include "checked_mutex.hpp"
#include "job_rank.hpp"

namespace gpumem {
namespace {

struct log_state {
  checked_mutex mutex;
  log_sink sink GPUMEM_GUARDED_BY(mutex);
  std::set<std::string> logged_once GPUMEM_GUARDED_BY(mutex);
};

log_state& state() {
  static auto* const the_state = new log_state;
  return *the_state;
}

/// Prevents a write into a pipe without a reader from ending the program: removes the SIGPIPE that this thread causes.
/// Restores errno.
class sigpipe_guard {
 public:
  sigpipe_guard() noexcept {
    sigemptyset(&pipe_);
    sigaddset(&pipe_, SIGPIPE);
    sigset_t pending;
    was_pending_ = ::sigpending(&pending) == 0 && sigismember(&pending, SIGPIPE) == 1;
    ::pthread_sigmask(SIG_BLOCK, &pipe_, &before_);
  }
  ~sigpipe_guard() {
    const timespec no_wait{};
    while (!was_pending_ && ::sigtimedwait(&pipe_, nullptr, &no_wait) < 0 && errno == EINTR) {
    }
    ::pthread_sigmask(SIG_SETMASK, &before_, nullptr);
    errno = error_;
  }
  sigpipe_guard& operator=(sigpipe_guard&&) = delete;

 private:
  const int error_ = errno;
  sigset_t pipe_{};
  sigset_t before_{};
  bool was_pending_ = false;
};

}  // namespace

/// Usually one write; more if the kernel accepts only a part or is interrupted.
void write_stderr(std::string_view text) noexcept {
  const sigpipe_guard guard;
  while (!text.empty()) {
    const ssize_t written = ::write(STDERR_FILENO, text.data(), text.size());
    if (written < 0) {
      if (errno == EINTR) continue;
      break;  // nowhere to report it
    }
    text.remove_prefix(static_cast<std::size_t>(written));
  }
}

void log_line(std::string_view line) {
  const mutex_lock lock{state().mutex};
  if (state().sink) {
    state().sink(line);
    return;
  }
  std::string text;
  const std::string& rank = rank_prefix();
  text.reserve(rank.size() + line.size() + 9);
  text.append("gpumem: ").append(rank).append(line).push_back('\n');
  write_stderr(text);
}

void log_once(const std::string& line) {
  {
    const mutex_lock lock{state().mutex};
    if (!state().logged_once.insert(line).second) return;
  }
  log_line(line);
}

log_sink set_log_sink(log_sink sink) {
  const mutex_lock lock{state().mutex};
  return std::exchange(state().sink, std::move(sink));
}

}  // namespace gpumem
