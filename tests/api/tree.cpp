#include "tree.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <iterator>
#include <sstream>
#include <string_view>

namespace gpumem::tree {

namespace fs = std::filesystem;

std::vector<fs::path> files(const fs::path& folder, const std::vector<std::string>& extensions) {
  std::vector<fs::path> found;
  if (!fs::exists(folder)) return found;
  for (const auto& entry : fs::recursive_directory_iterator(folder)) {
    if (!entry.is_regular_file()) continue;
    if (std::find(extensions.begin(), extensions.end(), entry.path().extension().string()) == extensions.end())
      continue;
    found.push_back(entry.path());
  }
  std::sort(found.begin(), found.end());
  return found;
}

std::vector<include_line> includes(const fs::path& file) {
  std::vector<include_line> found;
  std::istringstream lines{text(file)};
  std::string line;
  for (std::size_t number = 1; std::getline(lines, line); ++number) {
    std::erase(line, ' ');
    constexpr std::string_view start = "#include";
    if (!line.starts_with(start)) continue;
    const std::size_t end = line.find_first_of(">\"", start.size() + 1);
    if (end == std::string::npos) continue;
    found.push_back({file, number, line.substr(start.size() + 1, end - start.size() - 1), line[start.size()] == '"'});
  }
  return found;
}

std::string text(const fs::path& file) {
  std::ifstream in{file, std::ios::binary};
  EXPECT_TRUE(in.is_open()) << file << " cannot be read";
  return {std::istreambuf_iterator<char>{in}, std::istreambuf_iterator<char>{}};
}

}  // namespace gpumem::tree
