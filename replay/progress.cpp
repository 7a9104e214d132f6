#include "progress.hpp"

#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <utility>

#include "print_error.hpp"
#include "text.hpp"

namespace gpumem::bench {
namespace {

bool on_terminal() { return ::isatty(STDERR_FILENO) != 0; }

void clear_line() { print_error("\r\033[K"); }

}  // namespace

progress::progress(std::size_t steps, bool quiet) : steps_{steps}, shown_{!quiet && on_terminal()} {}

progress::~progress() {
  if (shown_) clear_line();
}

void progress::step(std::string_view name) {
  if (!shown_) return;
  constexpr std::size_t width = 30;
  const std::lock_guard lock{mutex_};
  const std::size_t full = steps_ == 0 ? width : ++done_ * width / steps_;
  print_error("\r\033[K[{}{}] {}/{} {}", std::string(full, '#'), std::string(width - full, '.'), done_, steps_,
              visible(name.substr(0, 40)));
  (void)std::fflush(stderr);
}

timed_progress::timed_progress(std::string task, double longest_s) : task_{std::move(task)}, longest_s_{longest_s} {
  if (on_terminal()) thread_ = std::thread{[this] { draw(); }};
}

timed_progress::~timed_progress() {
  if (!thread_.joinable()) return;
  {
    const std::lock_guard lock{mutex_};
    finished_ = true;
  }
  ends_.notify_one();
  thread_.join();
  if (drawn_) clear_line();
}

void timed_progress::draw() {
  const auto begun = std::chrono::steady_clock::now();
  std::unique_lock lock{mutex_};
  while (!ends_.wait_for(lock, std::chrono::seconds{1}, [this] { return finished_; })) {
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begun;
    print_error("\r{}: {:.0f} s of at most {:.0f} s ", task_, took.count(), longest_s_);
    (void)std::fflush(stderr);
    drawn_ = true;
  }
}

}  // namespace gpumem::bench
