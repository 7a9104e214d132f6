/// A progress bar on stderr; silent if stderr is no terminal.
///
/// Any thread. The destructor clears the line.
#pragma once

#include <fmt/format.h>
#include <unistd.h>

#include <cstddef>
#include <cstdio>
#include <mutex>
#include <string>
#include <string_view>

#include "print_error.hpp"
#include "text.hpp"

namespace gpumem::bench {

class progress {
 public:
  progress(std::size_t steps, bool quiet) : steps_{steps}, shown_{!quiet && ::isatty(STDERR_FILENO) != 0} {}
  ~progress() {
    if (shown_) print_error("\r\033[K");
  }
  progress(const progress&) = delete;
  progress& operator=(const progress&) = delete;

  /// Counts one step and shows its name.
  void step(std::string_view name) {
    if (!shown_) return;
    constexpr std::size_t width = 30;
    const std::lock_guard lock{mutex_};
    const std::size_t full = steps_ == 0 ? width : ++done_ * width / steps_;
    print_error("\r\033[K[{}{}] {}/{} {}", std::string(full, '#'), std::string(width - full, '.'), done_, steps_,
                visible(name.substr(0, 40)));
    (void)std::fflush(stderr);
  }

 private:
  std::mutex mutex_;
  const std::size_t steps_;
  const bool shown_;
  std::size_t done_ = 0;
};

}  // namespace gpumem::bench
