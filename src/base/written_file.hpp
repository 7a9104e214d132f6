/// Files that gpumem writes for the program: traces and statistics.
///
/// Another user may have put a link to a valuable file, a pipe or a device at a name. Opening follows no link and
/// truncates only regular files. Each process of a job writes its own file.
#pragma once

#include <sys/types.h>

#include <string>

#include "gpumem/status.hpp"
#include "owned_fd.hpp"

namespace gpumem {

/// Opens a file for writing; creates it, or empties it if it is regular. Follows no link except to this process's own
/// descriptors (/dev/stdout, /dev/fd/3). If `secure`, an existing file must be regular and writable by the real user.
/// The status's message has only the reason, without the path.
result<owned_fd> open_written_file(const std::string& path, bool secure);
result<owned_fd> open_written_file(const std::string& path);

/// A file that only this process writes.
class written_file {
 public:
  /// Opens `path`. If another process writes it now, or another process of this job wrote it, opens `name.pidN.csv`
  /// beside `name.csv` instead, and logs that name. A job is the processes of one `gpumem run`, or else the process
  /// group.
  static result<written_file> open(const std::string& path);

  written_file() = default;
  written_file(written_file&&) noexcept = default;
  written_file& operator=(written_file&&) noexcept = default;
  ~written_file();
  [[nodiscard]] const std::string& path() const noexcept { return path_; }
  [[nodiscard]] int descriptor() const noexcept { return file_.get(); }
  /// False in a process that was forked after the file was opened. The parent still writes it, so the child must not.
  [[nodiscard]] bool is_of_this_process() const noexcept;

 private:
  written_file(std::string path, owned_fd file);
  std::string path_;
  owned_fd file_;  ///< holds the lock of the file's writer
  pid_t process_ = 0;
};

/// Marks the beginning of a job for the processes that this process starts.
void begin_job();

}  // namespace gpumem
