/// The path of an allocation that misses, as src/README.md tells it: each step's function exists and is called by the
/// step that the table names, and the request enters no room twice.
#include <gtest/gtest.h>

#include <algorithm>
#include <cctype>
#include <map>
#include <regex>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "tree.hpp"

namespace gpumem {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t most_steps = 13;

struct step {
  std::size_t caller = 0;  ///< 0: the program
  std::string function;    ///< with its class, if it has one
  fs::path file;
};

std::string bare_name(const std::string& function) { return function.substr(function.rfind(':') + 1); }

/// The folder of src/ that the file is in; that of `allocator` for a public header.
std::string room_of(const fs::path& file) {
  return *file.begin() == "include" ? "front" : file.parent_path().filename().string();
}

std::string unquoted(const std::string& cell) {
  std::string text;
  std::copy_if(cell.begin(), cell.end(), std::back_inserter(text), [](char c) { return c != ' ' && c != '`'; });
  return text;
}

/// The rows of the table below the heading.
std::vector<step> told_steps() {
  std::istringstream text{tree::text("src/README.md")};
  std::vector<step> steps;
  bool is_here = false;
  for (std::string line; std::getline(text, line);) {
    if (line.starts_with("## ")) is_here = line.starts_with("## An allocation without a hit");
    if (!is_here || !line.starts_with("| ") || std::isdigit(static_cast<unsigned char>(line[2])) == 0) continue;
    std::istringstream row{line.substr(1)};
    std::vector<std::string> cells(4);
    for (std::string& cell : cells) std::getline(row, cell, '|');
    EXPECT_EQ(unquoted(cells[0]), std::to_string(steps.size() + 1)) << "the steps are numbered in order";
    const std::string caller = unquoted(cells[1]);
    steps.push_back({.caller = caller.empty() ? 0 : static_cast<std::size_t>(std::stoul(caller)),
                     .function = unquoted(cells[2]),
                     .file = (fs::path{"src"} / unquoted(cells[3])).lexically_normal()});
  }
  return steps;
}

std::size_t end_of(const std::string& text, std::size_t begin, char opening, char closing) {
  std::size_t depth = 0;
  for (std::size_t i = begin; i < text.size(); ++i) {
    if (text[i] == opening) ++depth;
    if (text[i] == closing && --depth == 0) return i + 1;
  }
  return text.size();
}

/// The body of the function in the file, without comments; empty if the file does not define it.
std::string body_of(const step& told) {
  const std::string text = std::regex_replace(tree::text(told.file), std::regex{"//[^\n]*"}, "");
  const bool is_header = told.file.extension() == ".hpp";
  const std::string name = (is_header ? bare_name(told.function) : told.function) + "(";
  for (std::size_t at = text.find(name); at != std::string::npos; at = text.find(name, at + 1)) {
    const std::size_t behind = end_of(text, at + name.size() - 1, '(', ')');
    const std::size_t next = text.find_first_of(";{", behind);
    if (next == std::string::npos || text[next] == ';') continue;
    const std::string between = text.substr(behind, next - behind);
    if (between.find_first_of("()=,.") != std::string::npos) continue;
    return text.substr(next, end_of(text, next, '{', '}') - next);
  }
  return {};
}

bool calls(const std::string& body, const std::string& function) {
  return std::regex_search(body, std::regex{"\\b" + bare_name(function) + "\\("});
}

TEST(miss_path, has_at_most_thirteen_steps_and_each_is_called_by_the_step_that_is_told) {
  const std::vector<step> steps = told_steps();
  ASSERT_GE(steps.size(), 4U);
  EXPECT_LE(steps.size(), most_steps);
  for (std::size_t i = 0; i < steps.size(); ++i) {
    const step& each = steps[i];
    ASSERT_TRUE(fs::exists(each.file)) << each.file;
    EXPECT_NE(body_of(each), "") << each.file << " does not define " << each.function;
    if (i == 0) continue;
    ASSERT_TRUE(each.caller >= 1 && each.caller <= i) << each.function << " is called by an earlier step";
    const step& caller = steps[each.caller - 1];
    EXPECT_TRUE(calls(body_of(caller), each.function)) << caller.function << " does not call " << each.function;
  }
}

/// A call from one room into another enters that room; a return does not.
TEST(miss_path, enters_no_room_twice) {
  const std::vector<step> steps = told_steps();
  ASSERT_FALSE(steps.empty());
  std::vector<std::string> entered{room_of(steps.front().file)};
  for (const step& each : steps) {
    if (each.caller == 0) continue;
    const std::string room = room_of(each.file);
    if (room != room_of(steps.at(each.caller - 1).file)) entered.push_back(room);
  }
  EXPECT_EQ(entered, (std::vector<std::string>{"front", "pool", "cache", "heap"}));
}

/// The steps of one room that lead into another make that call once: no later step of the room comes back to it.
TEST(miss_path, asks_the_depot_and_the_heap_at_one_place_each) {
  std::map<std::string, int> times{{"caches.refill(", 0}, {"fits.take(", 0}, {"->allocate(lock", 0}};
  for (const fs::path& file : tree::files("src/pool", {".cpp", ".hpp"})) {
    const std::string text = tree::text(file);
    for (auto& [call, count] : times) {
      for (std::size_t at = text.find(call); at != std::string::npos; at = text.find(call, at + 1)) ++count;
    }
  }
  for (const auto& [call, count] : times) EXPECT_EQ(count, 1) << call;
}

}  // namespace
}  // namespace gpumem
