#include "result_file.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zlib.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <vector>

#include "log.hpp"
#include "text.hpp"

namespace gpumem::bench::sweep {
namespace {

constexpr unsigned most_files_of_a_label = 1000;
constexpr std::string_view before_crc = "{\"crc\":\"";
constexpr std::size_t crc_digits = 8;
constexpr std::string_view before_unit = "\",\"unit\":";
constexpr std::size_t head_length = before_crc.size() + crc_digits + before_unit.size();

std::string crc_of(std::string_view unit_json) {
  std::uint32_t crc = 0;
  constexpr std::string_view covered = "\"unit\":";
  crc = static_cast<std::uint32_t>(::crc32_z(crc, reinterpret_cast<const Bytef*>(covered.data()), covered.size()));
  crc = static_cast<std::uint32_t>(::crc32_z(crc, reinterpret_cast<const Bytef*>(unit_json.data()), unit_json.size()));
  return fmt::format("{:08x}", crc);
}

status failed(const std::string& path, std::string_view operation, int error) {
  return {errc::bad_setting, fmt::format("{}: {}: {}", printable(path, 4096), operation, std::strerror(error))};
}

/// The end of the last complete line.
off_t end_of_lines(int fd, off_t size) {
  std::vector<char> piece(std::size_t{1} << 16);
  for (off_t end = size; end > 0;) {
    const off_t begin = end > static_cast<off_t>(piece.size()) ? end - static_cast<off_t>(piece.size()) : 0;
    const ssize_t got = ::pread(fd, piece.data(), static_cast<std::size_t>(end - begin), begin);
    if (got <= 0) return 0;
    for (ssize_t k = got; k-- > 0;) {
      if (piece[static_cast<std::size_t>(k)] == '\n') return begin + k + 1;
    }
    end = begin;
  }
  return 0;
}

status cut_torn_line(int fd, const std::string& path) {
  struct stat is {};
  if (::fstat(fd, &is) != 0) return failed(path, "cannot be read", errno);
  if (!S_ISREG(is.st_mode)) return {};
  const off_t whole = end_of_lines(fd, is.st_size);
  if (whole == is.st_size) return {};
  log_line(fmt::format("{}: its last line is torn and was cut off", path));
  return ::ftruncate(fd, whole) == 0 ? status{} : failed(path, "cannot be cut", errno);
}

}  // namespace

std::string line_of(std::string_view unit_json) {
  return fmt::format("{}{}{}{}}}\n", before_crc, crc_of(unit_json), before_unit, unit_json);
}

std::string_view unit_of(std::string_view line) noexcept {
  if (line.size() < head_length + 3 || !line.starts_with(before_crc) || !line.ends_with('}')) return {};
  const std::string_view unit_json = line.substr(head_length, line.size() - head_length - 1);
  if (line.substr(before_crc.size() + crc_digits, before_unit.size()) != before_unit) return {};
  return crc_of(unit_json) == line.substr(before_crc.size(), crc_digits) ? unit_json : std::string_view{};
}

result<std::unique_ptr<result_file>> result_file::open(const std::string& folder, std::string_view kind,
                                                       const std::string& label) {
  for (unsigned k = 1; k <= most_files_of_a_label; ++k) {
    const std::string path = fmt::format("{}/{}-{}{}.jsonl", folder, kind, label, k == 1 ? "" : fmt::format(".{}", k));
    const int fd = ::open(path.c_str(), O_RDWR | O_APPEND | O_CREAT | O_CLOEXEC, 0666);
    if (fd < 0) return failed(path, "cannot be written", errno);
    if (::flock(fd, LOCK_EX | LOCK_NB) != 0 &&
        errno == EWOULDBLOCK) {  // on a file system without locks, continues unlocked
      ::close(fd);
      continue;
    }
    std::unique_ptr<result_file> file{new result_file{path, fd}};
    if (status cut = cut_torn_line(fd, path); !cut) return cut;
    return file;
  }
  return status{errc::bad_setting, fmt::format("{}/{}-{}.jsonl and {} more are locked by others", folder, kind, label,
                                               most_files_of_a_label - 1)};
}

result_file::~result_file() { ::close(fd_); }

status result_file::append(std::string_view unit_json) {
  const std::string line = line_of(unit_json);
  const std::lock_guard lock{mutex_};
  const off_t before = ::lseek(fd_, 0, SEEK_END);
  std::string_view rest = line;
  while (!rest.empty()) {
    const ssize_t written = ::write(fd_, rest.data(), rest.size());
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) {
      const int error = written < 0 ? errno : ENOSPC;
      if (before >= 0 && rest.size() != line.size()) (void)!::ftruncate(fd_, before);
      return failed(path_, "cannot be written", error);
    }
    rest.remove_prefix(static_cast<std::size_t>(written));
  }
  return {};
}

result<std::uint64_t> read_results(const std::string& path,
                                   const std::function<void(std::string_view unit, std::uint64_t offset)>& each) {
  const std::unique_ptr<std::FILE, int (*)(std::FILE*)> file{std::fopen(path.c_str(), "rbe"), std::fclose};
  if (file == nullptr) return failed(path, "cannot be read", errno);
  std::uint64_t damaged = 0;
  std::uint64_t offset = 0;
  std::string line;
  std::vector<char> piece(std::size_t{1} << 18);
  for (std::size_t got = 0; (got = std::fread(piece.data(), 1, piece.size(), file.get())) > 0;) {
    for (std::string_view rest{piece.data(), got}; !rest.empty();) {
      const std::size_t end = rest.find('\n');
      line.append(rest.substr(0, end));
      if (end == std::string_view::npos) break;
      rest.remove_prefix(end + 1);
      const std::string_view unit_json = unit_of(line);
      if (unit_json.empty()) {
        ++damaged;
      } else {
        each(unit_json, offset + head_length);
      }
      offset += line.size() + 1;
      line.clear();
    }
  }
  if (std::ferror(file.get()) != 0) return failed(path, "cannot be read", errno);
  return damaged;
}

}  // namespace gpumem::bench::sweep
