/// Access to the source tree for tests of its rules: files by folder, and the #include lines of each.
#pragma once

#include <cstddef>
#include <filesystem>
#include <string>
#include <vector>

namespace gpumem::tree {

struct include_line {
  std::filesystem::path file;  ///< relative to the root of the source tree
  std::size_t number = 0;
  std::string included;  ///< the text between the quotes or brackets
  bool quoted = false;
};

/// Regular files below `folder` (relative to the root) whose names end with one of `extensions`, sorted.
std::vector<std::filesystem::path> files(const std::filesystem::path& folder,
                                         const std::vector<std::string>& extensions);

/// Every #include of a file.
std::vector<include_line> includes(const std::filesystem::path& file);

/// The whole text of a file; fails the test if it cannot be read.
std::string text(const std::filesystem::path& file);

}  // namespace gpumem::tree
