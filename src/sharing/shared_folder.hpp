// The folder in shared memory where the processes of one user meet, and files in it that can be trusted.
//
// It is the user's alone (0700), and so is every file (0600, a regular file, one link, no symlink followed): anything
// else is refused before a byte of it is read.
#pragma once

#include <cstddef>
#include <string>
#include <utility>

#include "gpumem/status.hpp"

namespace gpumem {

/// A descriptor that is closed with its owner.
class owned_fd {
 public:
  owned_fd() noexcept = default;
  explicit owned_fd(int fd) noexcept : fd_{fd} {}
  owned_fd(owned_fd&& other) noexcept : fd_{std::exchange(other.fd_, -1)} {}
  owned_fd& operator=(owned_fd&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  ~owned_fd();
  [[nodiscard]] int get() const noexcept { return fd_; }
  /// Gives it up without closing it.
  [[nodiscard]] int release() noexcept { return std::exchange(fd_, -1); }

 private:
  int fd_ = -1;
};

/// GPUMEM_SHARED_FOLDER where `named` is not empty, else /dev/shm/gpumem-UID, else (where there is no /dev/shm)
/// /tmp/gpumem-UID. Made where it does not exist; `bad_setting` where it is somebody else's or open to others.
result<std::string> shared_folder(const std::string& named);

/// Opens a file of the folder for reading and writing, and makes it where `make` says so. `corrupt` where it is not
/// what this process may trust.
result<owned_fd> open_shared_file(const std::string& path, bool make);

/// From here to `close_shared`, a fork closes its copy of the descriptor at once: what lives as long as a descriptor,
/// locks and sockets, is then this process's alone.
void keep_from_forks(int fd);
/// Closes it, unless this is a fork in which that has happened.
void close_shared(owned_fd fd);

/// Locks one byte of an open file for this descriptor: the kernel unlocks it when the last process that has the
/// descriptor ends. False where another descriptor has it.
bool lock_byte(int fd, long at) noexcept;
void unlock_byte(int fd, long at) noexcept;
/// Whether another descriptor has it.
bool byte_locked(int fd, long at) noexcept;

}  // namespace gpumem
