#include "plan_file.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdio>
#include <filesystem>

#include "problem_file.hpp"

namespace gpumem::plan {
namespace {

using testing::HasSubstr;

step_plan small_plan() {
  return {.allocations = {{.bytes = 512}, {.bytes = 1024, .offset = 512, .stream = 1}, {.bytes = 512, .offset = 1536}},
          .repeat_from = 1,
          .height_bytes = 2048,
          .peak_bytes = 2048,
          .lower_bound_bytes = 2048};
}

/// The text with a corrected checksum, so that its contents are checked.
std::string signed_again(std::string text) {
  text.resize(text.rfind("checksum "));
  std::uint64_t hash = 0xcbf29ce484222325U;
  for (const char c : text) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3U;
  std::array<char, 32> sum{};
  (void)std::snprintf(sum.data(), sum.size(), "checksum %016llx\n", static_cast<unsigned long long>(hash));
  return text + sum.data();
}

std::string replaced(std::string text, const std::string& what, const std::string& by) {
  return text.replace(text.find(what), what.size(), by);
}

TEST(plan_file, comes_back_as_it_was_written) {
  const auto read = parse_plan(plan_text(small_plan()));
  ASSERT_TRUE(read) << read.why().message();
  EXPECT_EQ(read->allocations, small_plan().allocations);
  EXPECT_EQ(read->repeat_from, 1U);
  EXPECT_EQ(read->height_bytes, 2048U);
}

TEST(plan_file, is_refused_with_any_byte_changed_or_cut_off) {
  const std::string good = plan_text(small_plan());
  for (std::size_t at = 0; at < good.size(); ++at) {
    std::string bad = good;
    bad[at] = static_cast<char>(bad[at] ^ 1);
    EXPECT_FALSE(parse_plan(bad)) << "byte " << at;
    EXPECT_FALSE(parse_plan(good.substr(0, at == good.size() - 1 ? at - 1 : at))) << "cut at " << at;
  }
}

TEST(plan_file, names_another_granule_another_version_and_what_is_no_plan) {
  const std::string good = plan_text(small_plan());
  const auto other_granule = parse_plan(signed_again(replaced(good, "granule 512", "granule 4096")));
  EXPECT_EQ(other_granule.code(), errc::unsupported);
  EXPECT_EQ(other_granule.why().message(), "a plan for a granule of 4096 bytes, expected 512");
  const auto other_version = parse_plan(signed_again(replaced(good, "plan 1", "plan 2")));
  EXPECT_EQ(other_version.why().message(), "'gpumem plan 2', expected 'gpumem plan 1'");
  EXPECT_THAT(parse_plan("Thread,Time\n").why().message(), HasSubstr("not a plan: begins with 'Thread,Time'"));
}

TEST(plan_file, refuses_what_is_signed_and_wrong) {
  const std::string good = plan_text(small_plan());
  const auto message = [&](const std::string& what, const std::string& by) {
    return parse_plan(signed_again(replaced(good, what, by))).why().message();
  };
  EXPECT_EQ(message("1024 512 1", "1024 1536 1"), "damaged plan: allocation 1 of 3 is no place within 2048 bytes");
  EXPECT_EQ(message("1024 512 1", "1024 511 1"), "damaged plan: allocation 1 of 3 is no place within 2048 bytes");
  EXPECT_EQ(message("1024 512 1", "1536 512 1"), "damaged plan: its fingerprint is not that of its allocations");
  EXPECT_EQ(message("repeat_from 1", "repeat_from 3"), "damaged plan: 3 allocations that repeat from 3");
  EXPECT_EQ(message("allocations 3", "allocations 2"), "damaged plan: more lines than allocations");
}

TEST(plan_file, is_written_whole_and_names_a_place_that_cannot_be) {
  const std::string path = testing::TempDir() + "gpumem_plan_file_test.plan";
  ASSERT_TRUE(write_plan(path, small_plan()));
  EXPECT_FALSE(std::filesystem::exists(path + ".part"));
  const auto read = read_plan(path);
  ASSERT_TRUE(read) << read.why().message();
  EXPECT_EQ(read->allocations, small_plan().allocations);
  std::filesystem::remove(path);
  EXPECT_EQ(read_plan(path).why().message(),
            path + ": No such file or directory; expected a plan of `gpumem plan` or planned:renew");
  EXPECT_EQ(write_plan("/nowhere/at/all", small_plan()).message(), "/nowhere/at/all: No such file or directory");
}

TEST(plan_file, tells_a_plan_of_another_trace) {
  const std::vector<recorded_op> one{{.bytes = 100, .block = 0}, {.bytes = 700, .block = 1}};
  const std::vector<recorded_op> other{{.bytes = 100, .block = 0}, {.bytes = 1700, .block = 1}};
  const auto made = make_plan(one, {});
  ASSERT_TRUE(made);
  EXPECT_TRUE(is_plan_of(*made, one));
  EXPECT_THAT(is_plan_of(*made, other).message(), HasSubstr("a plan of another trace"));
}

}  // namespace
}  // namespace gpumem::plan
