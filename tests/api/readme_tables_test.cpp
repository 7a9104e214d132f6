/// The tables of files in the folders' READMEs: each file stands in the table of its folder, and each name in a table
/// is the name of a file or folder.
#include <fnmatch.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "tree.hpp"

namespace gpumem {
namespace {

namespace fs = std::filesystem;

/// The names in the first column of the tables with the heading `file`. A name may be a pattern: `trace.*`,
/// `latency*.cpp`. `.cpp` behind `trace.hpp` is `trace.cpp`. Empty if the file has no such table.
std::vector<std::string> names_in_tables(const fs::path& readme) {
  std::vector<std::string> names;
  std::istringstream lines{tree::text(readme)};
  bool in_table = false;
  for (std::string line; std::getline(lines, line);) {
    if (line.starts_with("| file |")) {
      in_table = true;
      continue;
    }
    in_table = in_table && line.starts_with('|');
    if (!in_table || line.starts_with("|-")) continue;
    const std::string cell = line.substr(0, line.find(" |", 2));
    for (std::size_t open = cell.find('`'); open != std::string::npos; open = cell.find('`', open)) {
      const std::size_t close = cell.find('`', open + 1);
      std::string name = cell.substr(open + 1, close - open - 1);
      if (name.starts_with('.') && !names.empty()) name = names.back().substr(0, names.back().rfind('.')) + name;
      names.push_back(name);
      open = close + 1;
    }
  }
  return names;
}

bool matches(const std::string& pattern, const std::string& path) {
  return ::fnmatch(pattern.c_str(), path.c_str(), 0) == 0;
}

/// A source stands in the table with its header's name, too.
bool stands_in(const std::vector<std::string>& names, const std::string& file) {
  const std::string header = file.ends_with(".cpp") ? file.substr(0, file.size() - 4) + ".hpp" : file;
  return std::ranges::any_of(names,
                             [&](const std::string& name) { return matches(name, file) || matches(name, header); });
}

bool is_listed(const fs::path& file) {
  const std::string name = file.filename().string();
  return name != "README.md" && name != "CMakeLists.txt" && !name.ends_with(".pyc");
}

std::vector<fs::path> readmes() {
  std::vector<fs::path> found;
  for (const char* folder :
       {"bench", "cli", "examples", "policies", "python", "replay", "simcuda", "src", "tests", "tools"}) {
    for (const fs::path& file : tree::files(folder, {".md"})) {
      if (file.filename() == "README.md") found.push_back(file);
    }
  }
  return found;
}

TEST(readme_tables, have_every_file_of_their_folder) {
  for (const fs::path& readme : readmes()) {
    const std::vector<std::string> names = names_in_tables(readme);
    if (names.empty()) continue;
    for (const auto& entry : fs::directory_iterator{readme.parent_path()}) {
      if (!entry.is_regular_file() || !is_listed(entry.path())) continue;
      EXPECT_TRUE(stands_in(names, entry.path().filename().string()))
          << entry.path().string() << " does not stand in the table of " << readme.string();
    }
  }
}

TEST(readme_tables, name_only_what_exists) {
  for (const fs::path& readme : readmes()) {
    std::set<std::string> files;
    for (const auto& entry : fs::recursive_directory_iterator{readme.parent_path()}) {
      files.insert(fs::relative(entry.path(), readme.parent_path()).string() + (entry.is_directory() ? "/" : ""));
    }
    for (const std::string& name : names_in_tables(readme)) {
      if (name == "gpumem/torch/prebuilt/") continue;  // only in a wheel
      EXPECT_TRUE(std::ranges::any_of(files, [&](const std::string& file) { return matches(name, file); }))
          << readme.string() << " names " << name;
    }
  }
}

class folder_with_table : public testing::TestWithParam<const char*> {};

TEST_P(folder_with_table, has_one) {
  EXPECT_FALSE(names_in_tables(fs::path{GetParam()} / "README.md").empty()) << GetParam();
}

INSTANTIATE_TEST_SUITE_P(every, folder_with_table,
                         testing::Values("src/base", "src/heap", "src/plan", "src/plan/solver", "src/device",
                                         "src/device/cuda", "src/device/sim", "src/cards", "src/group", "src/streams",
                                         "src/paging", "src/cache", "src/pool", "src/front", "src/adapters",
                                         "src/adapters/preload", "src/adapters/preload/symbols",
                                         "src/adapters/preload/serving", "src/adapters/preload/accounting", "policies",
                                         "replay", "bench", "bench/compare", "bench/latency", "bench/report",
                                         "bench/sweep", "bench/generate", "bench/baselines", "bench/claims",
                                         "bench/peers", "cli", "simcuda", "tests/frameworks", "tools"),
                         [](const auto& instance) {
                           std::string name = instance.param;
                           std::ranges::replace(name, '/', '_');
                           return name;
                         });

}  // namespace
}  // namespace gpumem
