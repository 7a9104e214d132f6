/// Progress of a sweep: units done, rate, estimated time left. A line that is redrawn on a terminal; with `lines`, a
/// new line every ten seconds, for logs of batch systems.
///
/// Any thread.
#pragma once

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <mutex>
#include <string>

namespace gpumem::bench::sweep {

/// `1,234 of 7,000 units, 3 failed, 45.2/s, about 2 min left`.
std::string progress_text(std::uint64_t done, std::uint64_t total, std::uint64_t failed, std::uint64_t done_here,
                          double seconds);

class sweep_progress {
 public:
  enum class form : std::uint8_t { none, line, lines };

  /// `before` units were done at the start. Draws on standard error if it is a terminal. With `any_terminal`, else
  /// draws on the controlling terminal, because mpirun replaces standard error by a pipe.
  sweep_progress(std::uint64_t before, std::uint64_t total, bool quiet, bool lines, bool any_terminal);
  ~sweep_progress();
  sweep_progress& operator=(sweep_progress&&) = delete;

  [[nodiscard]] bool shown() const noexcept { return form_ != form::none; }
  /// `done` counts the units finished since the start, by all processes.
  void show(std::uint64_t done, std::uint64_t failed);

 private:
  using clock = std::chrono::steady_clock;
  std::mutex mutex_;
  const std::uint64_t before_;
  const std::uint64_t total_;
  form form_ = form::none;
  std::FILE* terminal_ = stderr;
  const clock::time_point began_ = clock::now();
  clock::time_point last_{};
};

}  // namespace gpumem::bench::sweep
