#include "output_file.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>

#include "text.hpp"

namespace gpumem::cli {
namespace {

namespace fs = std::filesystem;

/// Creates a file at `path` and removes it. Returns 0 or the errno.
int make_and_remove(const std::string& path) {
  const int file = ::open(path.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0666);
  if (file < 0) return errno;
  ::close(file);
  std::error_code error;
  fs::remove(fs::canonical(path, error), error);  // the target of a link, not the link
  return 0;
}

}  // namespace

status check_output_file(const std::string& path, const char* option, bool replaced) {
  std::error_code error;
  const fs::file_status kind = fs::status(path, error);
  if (replaced && fs::exists(kind) && !fs::is_directory(kind) && !fs::is_regular_file(kind)) {
    return {errc::bad_setting,
            fmt::format("{} {}: cannot be replaced; expected a regular file", option, printable(path))};
  }
  int why = 0;
  if (fs::is_directory(kind)) {
    why = EISDIR;
  } else if (!fs::exists(kind)) {
    why = make_and_remove(path);
  } else {  // not opened: on closing it a pipe's reader would see the end of its input
    const std::string folder = fs::path{path}.has_parent_path() ? fs::path{path}.parent_path().string() : ".";
    if (::access(path.c_str(), W_OK) != 0 || (replaced && ::access(folder.c_str(), W_OK | X_OK) != 0)) why = errno;
  }
  if (why == 0) return {};
  return {errc::bad_setting, fmt::format("{} {}: cannot be written: {}; expected a file in a folder that exists and "
                                         "can be written",
                                         option, printable(path), std::strerror(why))};
}

}  // namespace gpumem::cli
