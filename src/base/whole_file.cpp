#include "whole_file.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <random>
#include <vector>

#include "owned_fd.hpp"

namespace gpumem {
namespace {

constexpr std::size_t part_bytes = std::size_t{1} << 16;

/// Appends the rest of the file. Returns 0, or the error number.
int append_rest(const owned_fd& file, std::string& content) {
  if (file.get() < 0) return errno;
  struct stat s {};
  if (::fstat(file.get(), &s) == 0) content.reserve(static_cast<std::size_t>(s.st_size));  // 0 for those of /proc
  std::vector<char> part(part_bytes);
  for (;;) {
    const ssize_t bytes = ::read(file.get(), part.data(), part.size());
    if (bytes < 0 && errno == EINTR) continue;
    if (bytes <= 0) return bytes == 0 ? 0 : errno;
    content.append(part.data(), static_cast<std::size_t>(bytes));
  }
}

}  // namespace

result<std::string> read_file(const std::string& path) {
  std::string content;
  const int error = append_rest(owned_fd{::open(path.c_str(), O_RDONLY | O_CLOEXEC)}, content);
  if (error == 0) return content;
  return status{errc::invalid_argument, std::strerror(error)};
}

std::string content_of(const std::string& path) {
  result<std::string> content = read_file(path);
  return content ? *std::move(content) : std::string{};
}

int write_and_rename(const std::string& path, const std::function<bool(std::FILE*)>& write) {
  // A unique name: several programs may write the file at once, even with the same pid in different containers.
  const std::string temporary = fmt::format("{}.{:08x}.part", path, std::random_device{}());
  std::FILE* const file = std::fopen(temporary.c_str(), "wbxe");
  if (file == nullptr) return errno;
  errno = 0;
  int error = 0;
  if (!write(file) || std::fflush(file) != 0) error = errno != 0 ? errno : EIO;
  if (std::fclose(file) != 0 && error == 0) error = errno;
  if (error == 0 && std::rename(temporary.c_str(), path.c_str()) != 0) error = errno;
  if (error != 0) (void)std::remove(temporary.c_str());
  return error;
}

int write_and_rename(const std::string& path, std::string_view text) {
  return write_and_rename(path, [text](std::FILE* file) { return write_text(file, text); });
}

bool write_text(std::FILE* file, std::string_view text) {
  return std::fwrite(text.data(), 1, text.size(), file) == text.size();
}

}  // namespace gpumem
