#include "sweep_progress.hpp"

#include <fmt/format.h>
#include <unistd.h>

namespace gpumem::bench::sweep {
namespace {

std::string duration_text(double seconds) {
  if (seconds < 90) return fmt::format("{:.0f} s", seconds);
  if (seconds < 90 * 60) return fmt::format("{:.0f} min", seconds / 60);
  return fmt::format("{:.1f} h", seconds / 3600);
}

}  // namespace

std::string progress_text(std::uint64_t done, std::uint64_t total, std::uint64_t failed, std::uint64_t done_here,
                          double seconds) {
  std::string text = fmt::format("{} of {} units", done, total);
  if (failed != 0) text += fmt::format(", {} failed", failed);
  if (done_here == 0 || seconds <= 0) return text;
  const double rate = static_cast<double>(done_here) / seconds;
  text += fmt::format(", {:.3g}/s", rate);
  if (done < total) text += fmt::format(", about {} left", duration_text(static_cast<double>(total - done) / rate));
  return text;
}

sweep_progress::sweep_progress(std::uint64_t before, std::uint64_t total, bool quiet, bool lines, bool any_terminal)
    : before_{before}, total_{total} {
  if (lines) {
    form_ = form::lines;
  } else if (!quiet && ::isatty(STDERR_FILENO) != 0) {
    form_ = form::line;
  } else if (!quiet && any_terminal) {
    if (std::FILE* const own = std::fopen("/dev/tty", "we"); own != nullptr) {
      terminal_ = own;
      form_ = form::line;
    }
  }
}

sweep_progress::~sweep_progress() {
  if (form_ == form::line) {
    fmt::print(terminal_, "\r\033[K");
    (void)std::fflush(terminal_);
  }
  if (terminal_ != stderr) (void)std::fclose(terminal_);
}

void sweep_progress::show(std::uint64_t done, std::uint64_t failed) {
  if (form_ == form::none) return;
  const std::lock_guard lock{mutex_};
  const auto time = clock::now();
  const auto wait = form_ == form::lines ? std::chrono::milliseconds{10'000} : std::chrono::milliseconds{100};
  if (time - last_ < wait && before_ + done < total_) return;
  last_ = time;
  const double seconds = std::chrono::duration<double>(time - began_).count();
  const std::string text = progress_text(before_ + done, total_, failed, done, seconds);
  fmt::print(terminal_, "{}{}{}", form_ == form::lines ? "gpumem_bench: " : "\r\033[K", text,
             form_ == form::lines ? "\n" : "");
  (void)std::fflush(terminal_);
}

}  // namespace gpumem::bench::sweep
