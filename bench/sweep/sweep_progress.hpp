/// How far a sweep is: units done, rate, estimate of the end. A line that is drawn again on a terminal; with `lines`, a
/// line of its own every ten seconds, for logs of batch systems.
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
std::string progress_text(std::uint64_t done, std::uint64_t of, std::uint64_t failed, std::uint64_t done_here,
                          double seconds);

class sweep_progress {
 public:
  enum class form : std::uint8_t { none, line, lines };

  /// `before` units were done when it began. The terminal is standard error, or the one that the process belongs to
  /// where `any_terminal` allows that (mpirun puts a pipe between).
  sweep_progress(std::uint64_t before, std::uint64_t of, bool quiet, bool lines, bool any_terminal);
  ~sweep_progress();
  sweep_progress(const sweep_progress&) = delete;
  sweep_progress& operator=(const sweep_progress&) = delete;

  [[nodiscard]] bool shown() const noexcept { return form_ != form::none; }
  /// So many were done since it began, by everybody.
  void show(std::uint64_t done, std::uint64_t failed);

 private:
  using clock = std::chrono::steady_clock;
  std::mutex mutex_;
  const std::uint64_t before_;
  const std::uint64_t of_;
  form form_ = form::none;
  std::FILE* terminal_ = stderr;
  const clock::time_point began_ = clock::now();
  clock::time_point last_{};
};

}  // namespace gpumem::bench::sweep
