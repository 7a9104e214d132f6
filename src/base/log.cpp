/// Whole lines to stderr or to a sink. The lock orders lines and guards the sink.
///
/// The state is never destroyed: lines may come from other threads or static destructors while the process exits.
#include "log.hpp"

#include <unistd.h>

#include <cerrno>
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

/// Usually one write; more if the kernel accepts only a part or is interrupted.
void write_whole(std::string_view text) noexcept {
  while (!text.empty()) {
    const ssize_t written = ::write(STDERR_FILENO, text.data(), text.size());
    if (written < 0) {
      if (errno == EINTR) continue;
      return;  // nowhere to report it
    }
    text.remove_prefix(static_cast<std::size_t>(written));
  }
}

}  // namespace

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
  write_whole(text);
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
