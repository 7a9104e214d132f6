/// gpumem's log: whole lines to stderr, or to a sink.
///
/// Any thread. The log holds a lock while the sink runs, so a sink must not log and must not replace itself.
#pragma once

#include <functional>
#include <string>
#include <string_view>

namespace gpumem {

/// Receives each line without prefix and newline.
using log_sink = std::function<void(std::string_view)>;

/// Writes `gpumem: <line>`, in a job `gpumem: rank 3: <line>`, and a newline to stderr in one write, or passes `line`
/// to the sink. If stderr is closed, full or not read, the line is lost. Keeps errno.
void log_line(std::string_view line);

/// Writes the text to stderr unchanged; handles failures as `log_line` does.
void write_stderr(std::string_view text) noexcept;

/// Logs a line only the first time that the process logs it by this function.
void log_once(const std::string& line);

/// Logs the line that `make` returns. Logs nothing if the host has no memory for it or the sink throws.
template <typename Make>
void log_if_possible(const Make& make) noexcept {
  try {
    log_line(make());
  } catch (...) {  // nowhere to report it
  }
}

/// Replaces the sink and returns the old one; null is stderr. No line reaches the old sink after this returns.
log_sink set_log_sink(log_sink sink);

}  // namespace gpumem
