// A file descriptor that its owner closes.
#pragma once

#include <fcntl.h>
#include <unistd.h>

#include <utility>

namespace gpumem {

class owned_fd {
 public:
  owned_fd() noexcept = default;
  explicit owned_fd(int fd) noexcept : fd_{fd} {}
  owned_fd(owned_fd&& source) noexcept : fd_{std::exchange(source.fd_, -1)} {}
  owned_fd& operator=(owned_fd&& source) noexcept {
    std::swap(fd_, source.fd_);
    return *this;
  }
  ~owned_fd() {
    if (fd_ >= 0) ::close(fd_);
  }
  [[nodiscard]] int get() const noexcept { return fd_; }
  /// Releases the descriptor without closing it.
  [[nodiscard]] int release() noexcept { return std::exchange(fd_, -1); }

 private:
  int fd_ = -1;
};

/// Both ends of a pipe, which programs that this one starts do not inherit.
struct pipe_ends {
  owned_fd reader;
  owned_fd writer;

  /// False, with the reason in errno, if no pipe can be made.
  bool open() noexcept {
    int ends[2] = {};
    if (::pipe2(ends, O_CLOEXEC) != 0) return false;
    reader = owned_fd{ends[0]};
    writer = owned_fd{ends[1]};
    return true;
  }
};

}  // namespace gpumem
