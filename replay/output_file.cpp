#include "output_file.hpp"

#include <fmt/format.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <system_error>

#include "text.hpp"

namespace gpumem::bench {
namespace {

/// Writes and closes. Returns the error number, or 0.
int write_all(std::FILE* file, std::string_view text, bool close) {
  const bool written = std::fwrite(text.data(), 1, text.size(), file) == text.size() && std::fflush(file) == 0;
  const int error = written ? 0 : errno;
  const bool closed = !close || std::fclose(file) == 0;
  return error != 0 || closed ? error : errno;
}

}  // namespace

output_file::~output_file() {
  std::error_code ignored;
  if (created_) std::filesystem::remove(path_, ignored);
}

status output_file::failed(int error) const {
  return {errc::bad_setting, fmt::format("{}: cannot be written: {}", printable(path_, 4096), std::strerror(error))};
}

status output_file::try_out() {
  if (!wanted() || is_standard_output()) return {};
  std::error_code ignored;
  const bool existed = std::filesystem::exists(path_, ignored);
  std::FILE* const file = std::fopen(path_.c_str(), "ab");
  if (file == nullptr) return failed(errno);
  created_ = !existed;
  if (std::fclose(file) != 0) return failed(errno);
  return {};
}

status output_file::write(std::string_view text) {
  if (is_standard_output()) return print_out(text);
  std::FILE* const file = std::fopen(path_.c_str(), "wb");
  if (file == nullptr) return failed(errno);
  if (const int error = write_all(file, text, true); error != 0) return failed(error);
  created_ = false;  // keeps the destructor from removing it
  return {};
}

status print_out(std::string_view text) {
  const int error = write_all(stdout, visible(text), false);  // names come from files
  if (error == 0) return {};
  return {errc::bad_setting, fmt::format("standard output cannot be written: {}", std::strerror(error))};
}

}  // namespace gpumem::bench
