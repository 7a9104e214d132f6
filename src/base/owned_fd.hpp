// A file descriptor that its owner closes.
#pragma once

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

}  // namespace gpumem
