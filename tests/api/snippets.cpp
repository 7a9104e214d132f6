#include "snippets.hpp"

#include <sstream>

#include "tree.hpp"

namespace gpumem::tree {

std::vector<snippet> snippets() {
  std::vector<std::filesystem::path> documents{"README.md", "CONTRIBUTING.md", "bench/README.md"};
  for (const char* folder : {"docs", "policies", "include", "examples"}) {
    for (const std::filesystem::path& file : files(folder, {".md"})) documents.push_back(file);
  }
  std::vector<snippet> out;
  for (const std::filesystem::path& file : documents) {
    std::istringstream lines{text(file)};
    bool within = false;
    std::size_t number = 0;
    for (std::string line; std::getline(lines, line);) {
      ++number;
      if (line.starts_with("```")) {
        within = !within;
        if (within) out.push_back({file, number + 1, line.substr(3), {}});
      } else if (within) {
        out.back().text += line + "\n";
      }
    }
  }
  return out;
}

}  // namespace gpumem::tree
