#include "replaced_file.hpp"

#include <fmt/format.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <random>

#include "output_file.hpp"
#include "text.hpp"

namespace gpumem::cli {

status replace_file(const std::string& path, const char* option, std::string_view text) {
  if (status possible = check_output_file(path, option, true); !possible) return possible;
  const std::string temporary = fmt::format("{}.{:08x}.part", path, std::random_device{}());
  const auto failed = [&](int error) {
    return status{errc::bad_setting,
                  fmt::format("{} {}: cannot be written: {}", option, printable(path), std::strerror(error))};
  };
  std::FILE* const file = std::fopen(temporary.c_str(), "wbx");
  if (file == nullptr) return failed(errno);
  bool written = std::fwrite(text.data(), 1, text.size(), file) == text.size() && std::fflush(file) == 0;
  int error = written ? 0 : errno;
  if (std::fclose(file) != 0 && written) {
    written = false;
    error = errno;
  }
  if (written && std::rename(temporary.c_str(), path.c_str()) == 0) return {};
  if (written) error = errno;
  (void)std::remove(temporary.c_str());
  return failed(error);
}

}  // namespace gpumem::cli
