/// The writer of a file holds an open file description lock on its first byte. The modification time tells whether this
/// job wrote the file. Each writer sets it from the precise clock when it opens and closes the file, because the
/// kernel's own stamps are up to a tick old.
#include "written_file.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "checked_mutex.hpp"
#include "log.hpp"
#include "process_files.hpp"
#include "text.hpp"
#include "trusted_path.hpp"

namespace gpumem {
namespace {

constexpr const char* job_variable = "_GPUMEM_JOB_BEGAN";  // nanoseconds since 1970
constexpr std::int64_t second_ns = 1'000'000'000;
constexpr unsigned most_names = 100;

std::int64_t now_ns(clockid_t clock) {
  timespec time{};
  ::clock_gettime(clock, &time);
  return time.tv_sec * second_ns + time.tv_nsec;
}

status refused(std::string_view why) { return {errc::bad_setting, std::string{why}}; }

bool names_own_descriptor(std::string_view path) {
  return path == "/dev/stdout" || path == "/dev/stderr" || path.starts_with("/dev/fd/") ||
         path.starts_with("/proc/self/fd/");
}

/// Opens the file without truncating it.
result<owned_fd> open_unchanged(const std::string& path, bool secure) {
  constexpr int flags = O_WRONLY | O_CLOEXEC;
  owned_fd made{::open(path.c_str(), flags | O_CREAT | O_EXCL | O_NOFOLLOW, 0666)};
  if (made.get() >= 0) return made;
  if (errno != EEXIST) return refused(std::strerror(errno));
  const bool own = !secure && names_own_descriptor(path);
  owned_fd file{::open(path.c_str(), own ? flags : flags | O_NOFOLLOW)};
  if (file.get() < 0) return refused(errno == ELOOP ? "is a symbolic link" : std::strerror(errno));
  if (!secure) return file;
  struct stat opened {};
  struct stat named {};
  if (::fstat(file.get(), &opened) != 0 || !S_ISREG(opened.st_mode)) return refused("is not a regular file");
  // access() checks the real user, but by name, so check that the name still means the opened file.
  const bool allowed = ::access(path.c_str(), W_OK) == 0 && ::lstat(path.c_str(), &named) == 0 &&
                       named.st_dev == opened.st_dev && named.st_ino == opened.st_ino;
  if (!allowed) return refused("this program's user may not write it");
  return file;
}

status empty_if_regular(const owned_fd& file) {
  struct stat s {};
  if (::fstat(file.get(), &s) != 0) return refused(std::strerror(errno));
  if (S_ISREG(s.st_mode) && ::ftruncate(file.get(), 0) != 0) return refused(std::strerror(errno));
  return {};
}

bool is_regular(const owned_fd& file) {
  struct stat s {};
  return ::fstat(file.get(), &s) == 0 && S_ISREG(s.st_mode);
}

std::int64_t modified_ns(const struct stat& file) { return file.st_mtim.tv_sec * second_ns + file.st_mtim.tv_nsec; }

void stamp(const owned_fd& file) {
  const std::int64_t time = now_ns(CLOCK_REALTIME);
  const timespec precise{.tv_sec = time / second_ns, .tv_nsec = time % second_ns};
  const std::array<timespec, 2> times{timespec{.tv_sec = 0, .tv_nsec = UTIME_OMIT}, precise};
  static_cast<void>(::futimens(file.get(), times.data()));
}

/// False if another open file description holds the lock; true on a file system without locks.
bool lock_writer(const owned_fd& file) {
  struct flock first {};
  first.l_type = F_WRLCK;
  first.l_whence = SEEK_SET;
  first.l_len = 1;
  return ::fcntl(file.get(), F_OFD_SETLK, &first) == 0 || (errno != EAGAIN && errno != EACCES);
}

/// Returns when the process group's leader started; empty if it has ended.
std::optional<std::int64_t> group_began_ns() {
  const std::vector<std::string> fields = stat_fields(fmt::format("/proc/{}", ::getpgrp()));
  constexpr std::size_t start_time = 19;  // the 22nd field of the file
  const auto ticks = fields.size() > start_time ? whole_number<std::int64_t>(fields[start_time]) : std::nullopt;
  if (!ticks) return std::nullopt;
  const std::int64_t began = *ticks * (second_ns / ::sysconf(_SC_CLK_TCK));  // since the machine started
  return now_ns(CLOCK_REALTIME) - (now_ns(CLOCK_BOOTTIME) - began);
}

std::optional<std::int64_t> job_began_ns() {
  const char* const marked = std::getenv(job_variable);
  if (marked != nullptr) return whole_number<std::int64_t>(marked);
  return group_began_ns();
}

/// `runs.pid77.csv.gz` for `runs.csv.gz`; from the second on, `runs.pid77.2.csv.gz`.
std::string own_name(const std::string& path, unsigned attempt) {
  const std::size_t slash = path.rfind('/');
  const std::size_t dot = path.find('.', slash == std::string::npos ? 1 : slash + 2);
  const std::string number = attempt == 1 ? "" : fmt::format(".{}", attempt);
  return fmt::format("{}.pid{}{}{}", path.substr(0, dot), ::getpid(), number,
                     dot == std::string::npos ? "" : path.substr(dot));
}

struct known_files {
  checked_mutex mutex;
  std::set<std::string> written GPUMEM_GUARDED_BY(mutex);
};

known_files& all_known() {
  static auto* const only = new known_files;
  return *only;
}

/// The key includes the pid, because a forked child has not written its parent's files.
std::string key_of(const std::string& path, const struct stat& file) {
  return fmt::format("{} {} {} {}", ::getpid(), file.st_dev, file.st_ino, path);
}

/// Whether this process has written the file before; it may then write it again.
bool written_before(const std::string& path, const struct stat& file) {
  const mutex_lock lock{all_known().mutex};
  return all_known().written.contains(key_of(path, file));
}

void remember_written(const std::string& path, const struct stat& file) {
  const mutex_lock lock{all_known().mutex};
  all_known().written.insert(key_of(path, file));
}

}  // namespace

result<owned_fd> open_written_file(const std::string& path, bool secure) {
  result<owned_fd> file = open_unchanged(path, secure);
  if (!file) return file;
  if (status emptied = empty_if_regular(*file); !emptied) return emptied;
  return file;
}

result<owned_fd> open_written_file(const std::string& path) { return open_written_file(path, runs_secure()); }

written_file::written_file(std::string path, owned_fd file)
    : path_{std::move(path)}, file_{std::move(file)}, process_{::getpid()} {}

written_file::~written_file() {
  if (file_.get() >= 0 && is_of_this_process() && is_regular(file_)) stamp(file_);
}

bool written_file::is_of_this_process() const noexcept { return process_ == ::getpid(); }

result<written_file> written_file::open(const std::string& path) {
  const std::int64_t began = job_began_ns().value_or(now_ns(CLOCK_REALTIME));
  for (unsigned attempt = 0; attempt < most_names; ++attempt) {
    const std::string name = attempt == 0 ? path : own_name(path, attempt);
    result<owned_fd> file = open_unchanged(name, runs_secure());
    if (!file) return file.why();
    if (!is_regular(*file)) return written_file{name, *std::move(file)};
    if (!lock_writer(*file)) continue;
    struct stat s {};
    if (::fstat(file->get(), &s) != 0) return refused(std::strerror(errno));
    const bool of_this_job = s.st_size != 0 && modified_ns(s) > began;
    if (of_this_job && !written_before(name, s)) continue;
    if (status emptied = empty_if_regular(*file); !emptied) return emptied;
    remember_written(name, s);
    stamp(*file);
    if (attempt != 0) {
      log_line(fmt::format("{}: another process of this job writes it; this process (pid {}) writes {}",
                           printable(path, 4096), ::getpid(), printable(name, 4096)));
    }
    return written_file{name, *std::move(file)};
  }
  return refused("processes of this job have written it and the names beside it");
}

void begin_job() { ::setenv(job_variable, fmt::format("{}", now_ns(CLOCK_REALTIME)).c_str(), 1); }

}  // namespace gpumem
