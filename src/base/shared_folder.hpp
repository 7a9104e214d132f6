// The folder in shared memory that the processes of one user share, and trusted files in it.
//
// The folder has mode 0700. A trusted file is a regular file of this user with one link, closed to all others, and its
// path does not end at a symlink. Any other file is refused before a byte of it is read.
#pragma once

#include <string>

#include "gpumem/status.hpp"
#include "owned_fd.hpp"

namespace gpumem {

/// Opens or creates the folder `named` (GPUMEM_SHARED_FOLDER). If `named` is empty, the folder is /dev/shm/gpumem-UID,
/// or /tmp/gpumem-UID without /dev/shm. `bad_setting` if it belongs to another user or is open to others.
result<std::string> shared_folder(const std::string& named);

/// Opens a file of the folder for reading and writing, and with `make` creates it. `corrupt` if the file is not
/// trusted.
result<owned_fd> open_shared_file(const std::string& path, bool make);

/// Until `close_shared`, a forked child closes its copy of the descriptor at once, so that locks and sockets end with
/// this process.
void keep_from_forks(int fd);
/// Closes the descriptor, unless this is a forked child that has already closed it.
void close_shared(owned_fd fd);

/// Locks one byte of a file for this descriptor. The kernel unlocks it when the last process with the descriptor ends.
/// False if another descriptor holds the lock.
bool lock_byte(int fd, long offset) noexcept;
void unlock_byte(int fd, long offset) noexcept;
/// Whether another descriptor holds the lock.
bool byte_locked(int fd, long offset) noexcept;
/// Whether another descriptor holds a lock on any byte.
bool any_byte_locked(int fd) noexcept;

}  // namespace gpumem
