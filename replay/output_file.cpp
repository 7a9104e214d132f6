#include "output_file.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>

#include "text.hpp"
#include "whole_file.hpp"

namespace gpumem::bench {
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

status not_written(const std::string& path, const char* option, int error) {
  return {errc::bad_setting,
          fmt::format("{} {}: cannot be written: {}", option, printable(path, 4096), std::strerror(error))};
}

}  // namespace

status check_output_file(const std::string& path, const char* option, bool replaced) {
  std::error_code error;
  const fs::file_status kind = fs::status(path, error);
  if (replaced && fs::exists(kind) && !fs::is_directory(kind) && !fs::is_regular_file(kind)) {
    return {errc::bad_setting,
            fmt::format("{} {}: cannot be replaced; expected a regular file", option, printable(path, 4096))};
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
  return {errc::bad_setting, fmt::format("{}; expected a file in a folder that exists and can be written",
                                         not_written(path, option, why).message())};
}

status replace_file(const std::string& path, const char* option, std::string_view text) {
  if (status possible = check_output_file(path, option, true); !possible) return possible;
  const int error = write_and_rename(path, text);
  return error == 0 ? status{} : not_written(path, option, error);
}

status print_out(std::string_view text) {
  if (write_text(stdout, visible(text)) && std::fflush(stdout) == 0) return {};  // names come from files
  return {errc::bad_setting, fmt::format("standard output cannot be written: {}", std::strerror(errno))};
}

status output_file::check() const {
  return !wanted() || is_standard_output() ? status{} : check_output_file(path_, option_);
}

status output_file::write(std::string_view text) const {
  if (is_standard_output()) return print_out(text);
  std::FILE* const file = std::fopen(path_.c_str(), "wbe");
  if (file == nullptr) return not_written(path_, option_, errno);
  const int error = write_text(file, text) && std::fflush(file) == 0 ? 0 : errno;
  return std::fclose(file) == 0 && error == 0 ? status{} : not_written(path_, option_, error != 0 ? error : errno);
}

}  // namespace gpumem::bench
