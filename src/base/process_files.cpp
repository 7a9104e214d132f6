#include "process_files.hpp"

#include <fmt/format.h>

#include <iterator>
#include <sstream>

#include "text.hpp"
#include "whole_file.hpp"

namespace gpumem {

std::filesystem::path own_program() {
  std::error_code unknown;
  return std::filesystem::read_symlink("/proc/self/exe", unknown);
}

std::string command_of(unsigned process) {
  const std::string line = content_of(fmt::format("/proc/{}/comm", process));
  return printable(line.substr(0, line.find('\n')), 32);
}

std::vector<std::string> stat_fields(const std::string& folder) {
  const std::string line = content_of(folder + "/stat");
  const std::size_t name_end = line.rfind(')');  // the name may contain any character
  if (name_end == std::string::npos) return {};
  std::istringstream rest{line.substr(name_end + 1)};
  return {std::istream_iterator<std::string>{rest}, {}};
}

std::uint64_t number_after(const std::string& path, std::string_view key) {
  std::istringstream words{content_of(path)};
  std::uint64_t value = 0;
  for (std::string word; words >> word;) {
    if (word == key && words >> value) return value;
  }
  return 0;
}

pid_t parent_of(const std::string& folder) {
  const std::vector<std::string> fields = stat_fields(folder);
  return fields.size() > 1 ? whole_number<pid_t>(fields[1]).value_or(0) : 0;
}

}  // namespace gpumem
