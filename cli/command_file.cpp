#include "command_file.hpp"

#include <elf.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <sys/xattr.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <string_view>
#include <vector>

#include "text.hpp"

namespace gpumem::cli {
namespace {

/// Whether the file can be executed. If it exists but cannot, sets `refusal` to the reason for status 126.
bool can_run(const std::string& path, std::string& refusal) {
  struct stat s {};
  if (::stat(path.c_str(), &s) != 0) {
    if (errno != ENOENT && errno != ENOTDIR) refusal = std::strerror(errno);
    return false;
  }
  if (S_ISDIR(s.st_mode)) {
    refusal = "is a folder";
    return false;
  }
  if (::access(path.c_str(), X_OK) != 0) {
    refusal = std::strerror(errno);
    return false;
  }
  return true;
}

/// Whether the file has no program header for an interpreter, so that no loader can preload a library into it.
bool is_static(const std::string& path) {
  std::ifstream file{path, std::ios::binary};
  Elf64_Ehdr header{};
  if (!file.read(reinterpret_cast<char*>(&header), sizeof header)) return false;
  if (std::memcmp(header.e_ident, ELFMAG, SELFMAG) != 0 || header.e_ident[EI_CLASS] != ELFCLASS64) return false;
  file.seekg(static_cast<std::streamoff>(header.e_phoff));
  for (unsigned i = 0; i < header.e_phnum; ++i) {
    Elf64_Phdr part{};
    if (!file.read(reinterpret_cast<char*>(&part), sizeof part)) return false;
    if (part.p_type == PT_INTERP) return false;
  }
  return true;
}

std::string reason_against_preload(const std::string& path) {
  struct stat s {};
  if (::stat(path.c_str(), &s) != 0) return "";
  if ((s.st_mode & S_ISUID) != 0 && s.st_uid != ::geteuid()) return "is set-uid";
  if ((s.st_mode & S_ISGID) != 0 && s.st_gid != ::getegid()) return "is set-gid";
  if (::geteuid() != 0 && ::getxattr(path.c_str(), "security.capability", nullptr, 0) > 0) return "has capabilities";
  return is_static(path) ? "is statically linked" : "";
}

}  // namespace

command_file find_command(const std::string& name) {
  command_file found;
  std::vector<std::string> places;
  if (name.find('/') != std::string::npos) {
    places.push_back(name);
  } else {
    const char* const path = std::getenv("PATH");
    const std::string_view list = path != nullptr ? path : "/usr/local/bin:/usr/bin:/bin";
    for (std::size_t begin = 0; begin <= list.size();) {
      const std::size_t end = std::min(list.find(':', begin), list.size());
      const std::string_view folder = list.substr(begin, end - begin);
      places.push_back(fmt::format("{}/{}", folder.empty() ? "." : folder, name));
      begin = end + 1;
    }
  }
  std::string refusal;
  for (const std::string& place : places) {
    if (!name.empty() && can_run(place, refusal)) {
      found.path = place;
      found.no_preload = reason_against_preload(place);
      return found;
    }
  }
  found.exit_status = refusal.empty() ? not_found : not_executable;
  found.why = refusal.empty() ? fmt::format("{}: no such command", printable(name))
                              : fmt::format("{}: cannot be run: {}", printable(name), refusal);
  return found;
}

}  // namespace gpumem::cli
