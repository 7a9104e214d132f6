#include "tree.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <iterator>
#include <regex>
#include <sstream>

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
  static const std::regex pattern{R"re(^\s*#\s*include\s*([<"])([^>"]+)[>"])re"};
  std::vector<include_line> found;
  std::istringstream lines{text(file)};
  std::string line;
  for (std::size_t number = 1; std::getline(lines, line); ++number) {
    std::smatch match;
    if (std::regex_search(line, match, pattern))
      found.push_back({file, number, match[2].str(), match[1].str() == "\""});
  }
  return found;
}

std::string text(const fs::path& file) {
  std::ifstream in{file, std::ios::binary};
  EXPECT_TRUE(in.is_open()) << file << " cannot be read";
  return {std::istreambuf_iterator<char>{in}, std::istreambuf_iterator<char>{}};
}

}  // namespace gpumem::tree
