/// Files that gpumem writes for the program: traces and statistics.
///
/// A name can be another user's trap: a link to a file of value, a pipe, a device. Opening follows no link and empties
/// only regular files. Each process of a job writes a file of its own.
#pragma once

#include <string>

#include "gpumem/status.hpp"
#include "owned_fd.hpp"

namespace gpumem {

/// Opens a file for writing; creates it, or empties it if it is regular. Follows no link except to this process's own
/// descriptors (/dev/stdout, /dev/fd/3). If `secure`, an existing file must be regular and writable by the real user.
/// The status's message is the reason alone.
result<owned_fd> open_written_file(const std::string& path, bool secure);
result<owned_fd> open_written_file(const std::string& path);

/// A file that this process alone writes.
class written_file {
 public:
  /// `path`, or `name.pidN.csv` for `name.csv` if a live process writes `path`, or another process of this job wrote
  /// it. A job is what `gpumem run` runs, otherwise the process group. Logs the other name.
  static result<written_file> open(const std::string& path);

  written_file() = default;
  written_file(written_file&&) noexcept = default;
  written_file& operator=(written_file&&) noexcept = default;
  ~written_file();
  [[nodiscard]] const std::string& path() const noexcept { return path_; }
  [[nodiscard]] int descriptor() const noexcept { return file_.get(); }

 private:
  written_file(std::string path, owned_fd file);
  std::string path_;
  owned_fd file_;  ///< holds the lock of the file's writer
};

/// Marks the begin of a job for the processes that this one starts.
void begin_job();

}  // namespace gpumem
