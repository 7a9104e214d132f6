/// The one place where gpumem speaks of its own accord: whole lines to stderr, or to a sink of the caller's.
///
/// Any thread; one lock, held while the sink runs, so a sink must not log and must not replace itself.
#pragma once

#include <functional>
#include <string_view>

namespace gpumem {

/// Gets each line without prefix and without newline.
using log_sink = std::function<void(std::string_view)>;

/// Writes `gpumem: <line>`, in a job `gpumem: rank 3: <line>`, and a newline to stderr in one write, or hands `line` to
/// the sink.
void log_line(std::string_view line);

/// The line that `make` returns. Where the host has no memory for it, or the sink throws, there is none.
template <typename Make>
void log_if_possible(const Make& make) noexcept {
  try {
    log_line(make());
  } catch (...) {  // nobody is left to be told
  }
}

/// Replaces the sink and returns the former; null is stderr. No line reaches the former sink after this returns.
log_sink set_log_sink(log_sink sink);

}  // namespace gpumem
