#include "shared_folder.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <pthread.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <vector>

#include "checked_mutex.hpp"
#include "log.hpp"

namespace gpumem {
namespace {

constexpr mode_t of_owner = 0700;
constexpr mode_t file_mode = 0600;
constexpr mode_t of_others = 0077;

struct flock range(short type, long offset) noexcept {
  struct flock out {};
  out.l_type = type;
  out.l_whence = SEEK_SET;
  out.l_start = offset;
  out.l_len = 1;
  return out;
}

struct descriptors {
  checked_mutex mutex;
  std::vector<int> open GPUMEM_GUARDED_BY(mutex);
};
descriptors& all_descriptors() {
  static auto* const only = new descriptors;
  return *only;
}
GPUMEM_NOT_CHECKED void before_fork() { all_descriptors().mutex.lock(); }
GPUMEM_NOT_CHECKED void after_fork_in_parent() { all_descriptors().mutex.unlock(); }
GPUMEM_NOT_CHECKED void after_fork_in_child() {
  for (const int fd : all_descriptors().open) ::close(fd);
  all_descriptors().open.clear();
  all_descriptors().mutex.unlock();
}

/// Returns this user's number in the parent user namespace, so that a rootless container that shares /dev/shm with the
/// host uses the host user's folder.
unsigned outer_user() {
  const unsigned own = ::geteuid();
  std::ifstream map{"/proc/self/uid_map"};
  unsigned inside = 0;
  unsigned outside = 0;
  unsigned length = 0;
  while (map >> inside >> outside >> length) {
    if (own >= inside && own - inside < length) return outside + (own - inside);
  }
  return own;
}

bool is_folder(const char* path) {
  struct stat s {};
  return ::stat(path, &s) == 0 && S_ISDIR(s.st_mode);
}

}  // namespace

result<std::string> shared_folder(const std::string& named) {
  std::string path = named;
  if (named.empty()) {
    path = fmt::format("{}/gpumem-{}", is_folder("/dev/shm") ? "/dev/shm" : "/tmp", outer_user());
  } else if (!named.starts_with('/')) {
    std::error_code error;
    path = std::filesystem::absolute(named, error).lexically_normal().string();
    if (error) return status{errc::bad_setting, fmt::format("GPUMEM_SHARED_FOLDER={}: {}", named, error.message())};
    log_once(
        fmt::format("GPUMEM_SHARED_FOLDER={} is {} here, and another folder for processes that run elsewhere; "
                    "expected a path that begins with /",
                    named, path));
  }
  const auto refused = [&](std::string_view why) {
    return status{errc::bad_setting, fmt::format("GPUMEM_SHARED_FOLDER={}: {}", path, why)};
  };
  const auto refused_by_the_system = [&](int error) {
    return refused(fmt::format("{}; expected a folder of user {}, or the path of a new one in a folder that is there",
                               std::strerror(error), ::geteuid()));
  };
  if (::mkdir(path.c_str(), of_owner) != 0 && errno != EEXIST) return refused_by_the_system(errno);
  // The umask may have removed the owner's own rights. Restores them on an existing folder too, which an earlier
  // process may have created that way.
  struct stat s {};
  if (::lstat(path.c_str(), &s) != 0) return refused_by_the_system(errno);
  if (!S_ISDIR(s.st_mode)) return refused("expected a folder, not a file or a symlink");
  if (s.st_uid != ::geteuid()) {
    return refused(fmt::format(
        "belongs to user {}; expected a folder of user {}; processes of several user namespaces meet in a folder that "
        "GPUMEM_SHARED_FOLDER names and that belongs to their common user",
        s.st_uid, ::geteuid()));
  }
  if ((s.st_mode & of_others) != 0) {
    return refused(fmt::format("has mode {:04o}; expected 0700, for this user alone", s.st_mode & 07777U));
  }
  if ((s.st_mode & of_owner) != of_owner && ::chmod(path.c_str(), of_owner) != 0) return refused_by_the_system(errno);
  return path;
}

result<owned_fd> open_shared_file(const std::string& path, bool make) {
  const auto refused = [&](std::string_view why) {
    return status{errc::corrupt, fmt::format("{}: {}; expected a file of this user's alone", path, why)};
  };
  owned_fd file{::open(path.c_str(), O_RDWR | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK | (make ? O_CREAT : 0), file_mode)};
  if (file.get() < 0) return refused(errno == ELOOP ? "is a symlink" : std::strerror(errno));
  struct stat s {};
  if (::fstat(file.get(), &s) != 0) return refused(std::strerror(errno));
  if (!S_ISREG(s.st_mode)) return refused("is no regular file");
  if (s.st_uid != ::geteuid()) return refused(fmt::format("belongs to user {}", s.st_uid));
  if ((s.st_mode & of_others) != 0) return refused(fmt::format("has mode {:04o}", s.st_mode & 07777U));
  if ((s.st_mode & file_mode) != file_mode && ::fchmod(file.get(), file_mode) != 0)
    return refused(std::strerror(errno));
  if (s.st_nlink != 1) return refused(fmt::format("has {} names", s.st_nlink));
  return file;
}

void keep_from_forks(int fd) {
  static const int registered = pthread_atfork(before_fork, after_fork_in_parent, after_fork_in_child);
  static_cast<void>(registered);
  const mutex_lock lock{all_descriptors().mutex};
  all_descriptors().open.push_back(fd);
}

void close_shared(owned_fd fd) {
  const mutex_lock lock{all_descriptors().mutex};
  const bool known = std::erase(all_descriptors().open, fd.get()) != 0;
  const int number = fd.release();
  if (known) ::close(number);
}

bool lock_byte(int fd, long offset) noexcept {
  struct flock lock = range(F_WRLCK, offset);
  return ::fcntl(fd, F_OFD_SETLK, &lock) == 0;
}

void unlock_byte(int fd, long offset) noexcept {
  struct flock lock = range(F_UNLCK, offset);
  static_cast<void>(::fcntl(fd, F_OFD_SETLK, &lock));
}

bool byte_locked(int fd, long offset) noexcept {
  struct flock lock = range(F_WRLCK, offset);
  return ::fcntl(fd, F_OFD_GETLK, &lock) != 0 || lock.l_type != F_UNLCK;
}

bool any_byte_locked(int fd) noexcept {
  struct flock lock = range(F_WRLCK, 0);
  lock.l_len = 0;  // to the end of every file
  return ::fcntl(fd, F_OFD_GETLK, &lock) != 0 || lock.l_type != F_UNLCK;
}

}  // namespace gpumem
