/// The documents agree with the tree: the option table is the generated one, every folder has a README, links have
/// targets, and the example of a user's policy is as short as stated.
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "document_tables.hpp"
#include "gpumem/settings.hpp"
#include "tree.hpp"

namespace gpumem {
namespace {

namespace fs = std::filesystem;

/// The text between the lines with `marker` in a document.
std::string generated(const char* file, const std::string& marker) {
  const std::string begin = "<!-- " + marker + ": begin -->\n";
  const std::string end = "<!-- " + marker + ": end -->\n";
  const std::string text = tree::text(file);
  const std::size_t from = text.find(begin);
  const std::size_t to = text.find(end);
  EXPECT_NE(from, std::string::npos) << file << " lacks the line " << begin;
  EXPECT_NE(to, std::string::npos) << file << " lacks the line " << end;
  if (from == std::string::npos || to == std::string::npos || to < from) return {};
  return text.substr(from + begin.size(), to - from - begin.size());
}

TEST(settings_page, has_the_generated_option_table) {
  EXPECT_EQ(generated("docs/settings.md", "options"), tools::option_table()) << "run scripts/update_option_table";
}

TEST(settings_page, option_table_has_one_line_of_five_cells_for_each_option) {
  const std::string table = tools::option_table();
  const auto lines = std::count(table.begin(), table.end(), '\n');
  EXPECT_EQ(static_cast<std::size_t>(lines), option_table().size() + 2);
  EXPECT_EQ(std::count(table.begin(), table.end(), '|'), 6 * lines);
}

TEST(documents, policy_tables_have_every_policy_and_parameter) {
  for (const char* name : {"growth", "hard_cap", "multi_pool", "grab_all", "caching", "expandable", "planned"}) {
    EXPECT_NE(tools::policy_table().find("\n| `" + std::string{name} + "` | "), std::string::npos) << name;
  }
  for (const char* name : {"growth:segments", "expandable:slack", "planned:record", "planned:renew"}) {
    EXPECT_NE(tools::policy_parameter_table().find("\n| `" + std::string{name} + "` | "), std::string::npos) << name;
  }
}

TEST(documents, policy_tables_are_the_generated_ones) {
  for (const char* file : {"README.md", "docs/policies.md"}) {
    EXPECT_EQ(generated(file, "policies"), tools::policy_table()) << file << ": run scripts/update_policy_table";
  }
  EXPECT_EQ(generated("docs/policies.md", "parameters"), tools::policy_parameter_table())
      << "run scripts/update_policy_table";
}

/// The documents contain what scripts/record_peers generates from the recorded figures.
TEST(documents, tables_of_peers_are_those_of_the_recorded_figures) {
  if (std::system("python3 -c pass >/dev/null 2>&1") != 0) GTEST_SKIP() << "python3 is not installed";
  const fs::path folder = fs::temp_directory_path() / ("gpumem_peer_tables." + std::to_string(::getpid()));
  fs::create_directories(folder);
  fs::copy_file("bench/results/peers/figures.json", folder / "figures.json");
  fs::copy_file("README.md", folder / "README_of_the_project.md");
  const std::string command = "scripts/record_peers --tables --results '" + folder.string() + "' --readme '" +
                              (folder / "README_of_the_project.md").string() + "'";
  EXPECT_EQ(std::system(command.c_str()), 0) << command;
  const auto text = [](const fs::path& file) {
    std::ostringstream all;
    all << std::ifstream{file}.rdbuf();
    return all.str();
  };
  EXPECT_EQ(text(folder / "README.md"), text("bench/results/peers/README.md")) << "run scripts/record_peers --tables";
  EXPECT_EQ(text(folder / "README_of_the_project.md"), text("README.md")) << "run scripts/record_peers --tables";
  fs::remove_all(folder);
}

TEST(settings_page, names_every_option) {
  const std::string page = tree::text("docs/settings.md");
  ASSERT_FALSE(option_table().empty());
  for (const option_row& row : option_table()) {
    EXPECT_NE(page.find(std::string{row.variable}), std::string::npos) << row.variable;
  }
}

TEST(readme, has_at_most_120_lines) {
  const std::string readme = tree::text("README.md");
  EXPECT_LE(std::count(readme.begin(), readme.end(), '\n'), 120);
}

TEST(documents, show_the_first_programs_as_they_are) {
  const std::string page = tree::text("docs/use/cuda.md");
  EXPECT_NE(page.find("```cuda\n" + tree::text("examples/first.cu") + "```\n"), std::string::npos)
      << "copy examples/first.cu into docs/use/cuda.md";
  EXPECT_NE(page.find("```cpp\n" + tree::text("examples/basic.cpp") + "```\n"), std::string::npos)
      << "copy examples/basic.cpp into docs/use/cuda.md";
}

TEST(documents, the_basic_example_is_twelve_lines_of_program) {
  std::istringstream text{tree::text("examples/basic.cpp")};
  int lines = 0;
  for (std::string line; std::getline(text, line);) lines += line.empty() || line.starts_with("//") ? 0 : 1;
  EXPECT_LE(lines, 12);
}

class folder : public testing::TestWithParam<const char*> {};

TEST_P(folder, has_a_readme) { EXPECT_TRUE(fs::exists(fs::path{GetParam()} / "README.md")) << GetParam(); }

INSTANTIATE_TEST_SUITE_P(every, folder,
                         testing::Values(".", "include/gpumem", "src", "src/base", "src/heap", "src/plan",
                                         "src/plan/solver", "src/device", "src/cards", "src/group", "src/streams",
                                         "src/paging", "src/cache", "src/pool", "src/front", "src/adapters",
                                         "src/adapters/preload", "policies", "replay", "bench", "bench/traces", "cli",
                                         "examples", "simcuda", "tests", "tools"),
                         [](const auto& instance) {
                           std::string name = instance.param;
                           std::replace_if(
                               name.begin(), name.end(), [](char c) { return c == '/' || c == '.'; }, '_');
                           return name;
                         });

/// Markdown files of the tree, without those of build folders.
std::vector<fs::path> documents() {
  std::vector<fs::path> found{"README.md"};
  for (const char* folder :
       {"include", "src", "policies", "replay", "bench", "cli", "examples", "simcuda", "tests", "tools", "docs"}) {
    for (const fs::path& file : tree::files(folder, {".md"})) found.push_back(file);
  }
  return found;
}

/// Every piece of `text` between `open` and the next `close`.
std::vector<std::string> between(const std::string& text, const std::string& open, const std::string& close) {
  std::vector<std::string> found;
  for (std::size_t at = text.find(open); at != std::string::npos; at = text.find(open, at)) {
    at += open.size();
    const std::size_t end = text.find(close, at);
    if (end == std::string::npos) break;
    found.push_back(text.substr(at, end - at));
    at = end + close.size();
  }
  return found;
}

/// A document without its blocks of code.
std::string prose(const fs::path& file) {
  std::string text = tree::text(file);
  for (std::size_t fence = text.find("```"); fence != std::string::npos; fence = text.find("```", fence)) {
    const std::size_t end = text.find("```", fence + 3);
    text.erase(fence, end == std::string::npos ? end : end + 3 - fence);
  }
  return text;
}

TEST(documents, relative_links_lead_somewhere) {
  for (const fs::path& file : documents()) {
    for (std::string target : between(prose(file), "](", ")")) {
      target = target.substr(0, target.find('#'));
      if (target.empty() || target.find("://") != std::string::npos) continue;
      EXPECT_TRUE(fs::exists(file.parent_path() / target)) << file.string() << " links to " << target;
    }
  }
}

/// Whether a text looks like a path in one of the project's folders.
bool names_a_file(const std::string& quoted) {
  const std::vector<std::string> folders{"src/",   "policies/", "include/", "replay/", "bench/", "cli/",
                                         "tests/", "examples/", "scripts/", "docs/",   "cmake/", "tools/"};
  return quoted.find_first_not_of("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_./") ==
             std::string::npos &&
         std::any_of(folders.begin(), folders.end(),
                     [&quoted](const std::string& folder) { return quoted.starts_with(folder); });
}

TEST(documents, name_only_files_that_exist) {
  std::size_t named = 0;
  for (const fs::path& file : documents()) {
    for (const std::string& quoted : between(prose(file), "`", "`")) {
      if (!names_a_file(quoted)) continue;
      ++named;
      EXPECT_TRUE(fs::exists(quoted) || fs::exists(file.parent_path() / quoted))
          << file.string() << " names " << quoted;
    }
  }
  EXPECT_GT(named, 0U);
}

TEST(examples, a_whole_policy_takes_at_most_40_lines) {
  const std::string source = tree::text("examples/user_policy.cpp");
  EXPECT_LE(std::count(source.begin(), source.end(), '\n'), 40);
}

}  // namespace
}  // namespace gpumem
