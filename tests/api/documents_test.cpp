/// The documents against the tree: the option table is the generated one, every folder explains itself, links lead
/// somewhere, and the example of a user's policy is as short as it is said to be.
#include <gtest/gtest.h>

#include <algorithm>
#include <regex>
#include <string>
#include <vector>

#include "gpumem/settings.hpp"
#include "tree.hpp"

namespace gpumem {
namespace {

namespace fs = std::filesystem;

TEST(readme, option_table_is_the_generated_one) {
  const std::string begin = "<!-- options: begin -->\n";
  const std::string end = "<!-- options: end -->\n";
  const std::string readme = tree::text("README.md");
  const std::size_t from = readme.find(begin);
  const std::size_t to = readme.find(end);
  ASSERT_NE(from, std::string::npos) << "README.md lacks the line " << begin;
  ASSERT_NE(to, std::string::npos) << "README.md lacks the line " << end;
  ASSERT_LT(from, to);
  EXPECT_EQ(readme.substr(from + begin.size(), to - from - begin.size()), option_table_markdown())
      << "run scripts/update_option_table";
}

TEST(readme, names_every_option_in_its_table) {
  const std::string readme = tree::text("README.md");
  ASSERT_FALSE(option_table().empty());
  for (const option_row& row : option_table()) {
    EXPECT_NE(readme.find(std::string{row.variable}), std::string::npos) << row.variable;
  }
}

TEST(readme, shows_the_basic_example_as_it_is) {
  EXPECT_NE(tree::text("README.md").find("```cpp\n" + tree::text("examples/basic.cpp") + "```\n"), std::string::npos)
      << "copy examples/basic.cpp into README.md";
}

class folder : public testing::TestWithParam<const char*> {};

TEST_P(folder, has_a_readme) { EXPECT_TRUE(fs::exists(fs::path{GetParam()} / "README.md")) << GetParam(); }

INSTANTIATE_TEST_SUITE_P(every, folder,
                         testing::Values(".", "include/gpumem", "src", "src/base", "src/device", "src/heap", "src/pool",
                                         "src/front", "src/adapters", "policies", "bench", "bench/traces", "examples",
                                         "tests", "tools"),
                         [](const auto& instance) {
                           std::string name = instance.param;
                           std::replace_if(
                               name.begin(), name.end(), [](char c) { return c == '/' || c == '.'; }, '_');
                           return name;
                         });

/// Markdown files of the tree, without those of build folders.
std::vector<fs::path> documents() {
  std::vector<fs::path> found{"README.md"};
  for (const char* folder : {"include", "src", "policies", "bench", "examples", "tests", "tools", "docs"}) {
    for (const fs::path& file : tree::files(folder, {".md"})) found.push_back(file);
  }
  return found;
}

TEST(documents, relative_links_lead_somewhere) {
  const std::regex link{R"(\]\(([^)#\s]+)(#[^)]*)?\))"};
  for (const fs::path& file : documents()) {
    const std::string text = tree::text(file);
    for (std::sregex_iterator at{text.begin(), text.end(), link}; at != std::sregex_iterator{}; ++at) {
      const std::string target = (*at)[1].str();
      if (target.find("://") != std::string::npos) continue;
      EXPECT_TRUE(fs::exists(file.parent_path() / target)) << file.string() << " links to " << target;
    }
  }
}

TEST(documents, name_only_files_that_exist) {
  const std::regex named{"`((?:src|policies|include|bench|tests|examples|scripts|docs|cmake|tools)/[A-Za-z0-9_./]+)`"};
  for (const fs::path& file : documents()) {
    const std::string text = tree::text(file);
    for (std::sregex_iterator at{text.begin(), text.end(), named}; at != std::sregex_iterator{}; ++at) {
      const std::string name = (*at)[1].str();
      EXPECT_TRUE(fs::exists(name) || fs::exists(file.parent_path() / name)) << file.string() << " names " << name;
    }
  }
}

TEST(examples, a_whole_policy_takes_at_most_40_lines) {
  const std::string source = tree::text("examples/user_policy.cpp");
  EXPECT_LE(std::count(source.begin(), source.end(), '\n'), 40);
}

}  // namespace
}  // namespace gpumem
