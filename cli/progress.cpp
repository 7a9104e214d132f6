#include "progress.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <cstdio>
#include <utility>

#include "print_error.hpp"

namespace gpumem::cli {

progress::progress(std::string what, double longest_s) : what_{std::move(what)}, longest_s_{longest_s} {
  if (::isatty(STDERR_FILENO) != 0) thread_ = std::thread{[this] { draw(); }};
}

progress::~progress() {
  if (!thread_.joinable()) return;
  {
    const std::lock_guard lock{mutex_};
    over_ = true;
  }
  ends_.notify_one();
  thread_.join();
  if (drawn_) print_error("\r{:<{}}\r", "", what_.size() + 40);
}

void progress::draw() {
  const auto begun = std::chrono::steady_clock::now();
  std::unique_lock lock{mutex_};
  while (!ends_.wait_for(lock, std::chrono::seconds{1}, [this] { return over_; })) {
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begun;
    print_error("\r{}: {:.0f} s of at most {:.0f} s ", what_, took.count(), longest_s_);
    std::fflush(stderr);
    drawn_ = true;
  }
}

}  // namespace gpumem::cli
