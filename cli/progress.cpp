#include "progress.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <cstdio>
#include <utility>

#include "print_error.hpp"

namespace gpumem::cli {

progress::progress(std::string task, double longest_s) : task_{std::move(task)}, longest_s_{longest_s} {
  if (::isatty(STDERR_FILENO) != 0) thread_ = std::thread{[this] { draw(); }};
}

progress::~progress() {
  if (!thread_.joinable()) return;
  {
    const std::lock_guard lock{mutex_};
    finished_ = true;
  }
  ends_.notify_one();
  thread_.join();
  if (drawn_) print_error("\r{:<{}}\r", "", task_.size() + 40);
}

void progress::draw() {
  const auto begun = std::chrono::steady_clock::now();
  std::unique_lock lock{mutex_};
  while (!ends_.wait_for(lock, std::chrono::seconds{1}, [this] { return finished_; })) {
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begun;
    print_error("\r{}: {:.0f} s of at most {:.0f} s ", task_, took.count(), longest_s_);
    std::fflush(stderr);
    drawn_ = true;
  }
}

}  // namespace gpumem::cli
