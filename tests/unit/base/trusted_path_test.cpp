/// Paths that a program with more rights than its user must not use.
#include "trusted_path.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <string>
#include <vector>

#include "log.hpp"

namespace gpumem {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Pair;

struct row {
  std::string field;
  std::string variable;
  std::string values;
};
const std::vector<row> rows = {
#define OPTION(field, NAME, form, reach, guard, values, default_text, help) {#field, "GPUMEM_" #NAME, values},
#include "options.def"
#undef OPTION
};

class captured_log {
 public:
  captured_log() : before_{set_log_sink([this](std::string_view line) { lines.emplace_back(line); })} {}
  ~captured_log() { set_log_sink(before_); }
  captured_log(const captured_log&) = delete;
  captured_log& operator=(const captured_log&) = delete;
  std::vector<std::string> lines;

 private:
  log_sink before_;
};

TEST(trusted_path, every_option_whose_value_is_a_path_is_known) {
  for (const row& each : rows) {
    const bool path = each.values.find("path") != std::string::npos || each.field.ends_with("_path") ||
                      each.field.ends_with("_folder");
    EXPECT_EQ(names_path(each.variable), path) << each.variable;
    EXPECT_EQ(names_path(each.variable + "_1"), path) << each.variable;
  }
  EXPECT_FALSE(names_path("GPUMEM_TRACE_ALL"));
  EXPECT_FALSE(names_path("GPUMEM_TRACES"));
  EXPECT_FALSE(names_path("PATH"));
}

TEST(trusted_path, a_program_with_more_rights_ignores_them_and_says_so_once) {
  const environment all{{"GPUMEM_LIMIT", "1GiB"},
                        {"GPUMEM_TRACE", "/etc/passwd"},
                        {"GPUMEM_STATS", ""},
                        {"GPUMEM_PLAN_1", "plan"},
                        {"GPUMEM_SHARED_FOLDER", "/root/x"}};
  captured_log log;
  EXPECT_EQ(obeyed_variables(all, false), all);
  EXPECT_TRUE(log.lines.empty());
  EXPECT_THAT(obeyed_variables(all, true), ElementsAre(Pair("GPUMEM_LIMIT", "1GiB")));
  EXPECT_THAT(obeyed_variables(all, true), ElementsAre(Pair("GPUMEM_LIMIT", "1GiB")));
  EXPECT_THAT(log.lines, ElementsAre(HasSubstr("GPUMEM_TRACE is ignored: "), HasSubstr("GPUMEM_PLAN_1 is ignored: "),
                                     HasSubstr("GPUMEM_SHARED_FOLDER is ignored: ")));
}

}  // namespace
}  // namespace gpumem
