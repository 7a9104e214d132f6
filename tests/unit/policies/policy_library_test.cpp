/// Policies of shared libraries: refused libraries, and corrected answers.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>

#include "library_policy.hpp"
#include "log.hpp"
#include "trusted_path.hpp"
#include "views.hpp"

namespace gpumem::test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::StartsWith;

std::string library(const std::string& build) { return TEST_POLICY_LIBRARIES + build + ".so"; }

struct refusal {
  const char* build;
  const char* found;
};
class PolicyLibrary : public ::testing::TestWithParam<refusal> {};

TEST_P(PolicyLibrary, IsRefusedWithItsPathAndTheFault) {
  const std::string path = library(GetParam().build);
  const std::size_t before = known_policies().size();
  const status refused = load_policy_library(path);
  EXPECT_EQ(refused.code(), errc::bad_setting);
  EXPECT_THAT(refused.message(), AllOf(StartsWith("GPUMEM_POLICY_LIBRARY=" + path + ": "), HasSubstr(GetParam().found),
                                       HasSubstr("expected")));
  EXPECT_EQ(known_policies().size(), before) << "some of its policies were registered";
}

INSTANTIATE_TEST_SUITE_P(Each, PolicyLibrary,
                         ::testing::Values(refusal{"MISSING", "cannot open shared object file"},
                                           refusal{"NO_SYMBOL", "no symbol gpumem_policies"},
                                           refusal{"DATA_SYMBOL", "its symbol gpumem_policies is data"},
                                           refusal{"THREAD_DATA_SYMBOL", "its symbol gpumem_policies is data"},
                                           refusal{"WRONG_VERSION", "it is of version 2; expected 1"},
                                           refusal{"NULL_FUNCTION", "policy 'first_of_two' has a null `grow`"},
                                           refusal{"NAME_TAKEN", "policy 'growth' exists already"},
                                           refusal{"NULL_TABLE", "gpumem_policies returned null"},
                                           refusal{"WRONG_SIZE", "a policy's table has 8 bytes"},
                                           refusal{"TOO_MANY_CLASSES", "has 17 segment classes"}),
                         [](const auto& instance) { return std::string{instance.param.build}; });

TEST(PolicyLibraries, ServeUnderTheirNamesOnceLoaded) {
  ASSERT_TRUE(load_policy_library(library("GOOD")).ok());
  EXPECT_TRUE(load_policy_library(library("GOOD")).ok()) << "the same file again is nothing new";
  EXPECT_EQ(find_policy("from_a_library")->summary, "twice the need");
  const auto made = make("from_a_library");
  ASSERT_NE(made, nullptr);
  EXPECT_EQ(made->grow(view_of(gib), 4 * mib).bytes, 8 * mib);
  EXPECT_NE(make("also_from_a_library"), nullptr);
  const auto refused = make_policy("from_a_library:bad=1", {});
  EXPECT_EQ(refused.code(), errc::bad_setting);
  EXPECT_THAT(refused.why().message(), HasSubstr("policy 'from_a_library' could not be made: bad=1 is refused"));
}

TEST(PolicyLibraries, MayChooseTheirFunctionWhenLoaded) {
  const status loaded = load_policy_library(library("HIDDEN_IFUNC"));
  ASSERT_TRUE(loaded.ok()) << loaded.message();
  EXPECT_TRUE(find_policy("by_ifunc").ok());
}

TEST(PolicyLibraries, OneThatCannotBeLoadedStopsEveryLookup) {
  ASSERT_EQ(setenv("GPUMEM_POLICY_LIBRARY", library("WRONG_VERSION").c_str(), 1), 0);
  EXPECT_EQ(find_policy("growth").code(), errc::bad_setting);
  EXPECT_THAT(make_policy("growth", {}).why().message(), HasSubstr("version 2"));
  ASSERT_EQ(setenv("GPUMEM_POLICY_LIBRARY", library("GOOD").c_str(), 1), 0);
  EXPECT_TRUE(find_policy("from_a_library").ok());
  unsetenv("GPUMEM_POLICY_LIBRARY");
}

TEST(TrustedPath, IsIgnoredWithAWordInASecureProgram) {
  std::vector<std::string> lines;
  const log_sink former = set_log_sink([&lines](std::string_view line) { lines.emplace_back(line); });
  ASSERT_EQ(setenv("GPUMEM_TEST_PATH", "/tmp/mine.so", 1), 0);
  EXPECT_EQ(trusted_path("GPUMEM_TEST_PATH", false), "/tmp/mine.so");
  EXPECT_TRUE(lines.empty());
  EXPECT_EQ(trusted_path("GPUMEM_TEST_PATH", true), "");
  EXPECT_EQ(trusted_path("GPUMEM_TEST_PATH", true), "");
  unsetenv("GPUMEM_TEST_PATH");
  EXPECT_EQ(trusted_path("GPUMEM_TEST_PATH", true), "");
  set_log_sink(former);
  ASSERT_EQ(lines.size(), 1U) << "told once";
  EXPECT_THAT(lines.front(), StartsWith("GPUMEM_TEST_PATH is ignored"));
  EXPECT_FALSE(runs_secure());
}

// A policy with answers set by the test.
gpumem_policy_segment answered{};
std::uint64_t answered_bytes = 0;
unsigned answered_class = 0;
int closed = 0;

const gpumem_policy_functions wild{
    .name = "wild",
    .summary = nullptr,
    .open = [](const gpumem_policy_device*, const char*, char*, std::size_t) -> void* { return &answered; },
    .close = [](void*) { ++closed; },
    .grow = [](void*, const gpumem_policy_view*, std::uint64_t) { return answered; },
    .first = [](void*, const gpumem_policy_view*) { return answered; },
    .grew = nullptr,
    .smaller = [](void*, std::uint64_t, std::uint64_t) { return answered_bytes; },
    .gives_back = nullptr,
    .segment_classes = 2,
    .segment_class = [](void*, std::uint64_t) { return answered_class; }};

TEST(PolicyLibraries, AnswersOutOfRangeAreBroughtIntoIt) {
  const gpumem_policy_library table{.version = GPUMEM_POLICY_LIBRARY_VERSION,
                                    .function_bytes = sizeof(gpumem_policy_functions),
                                    .count = 1,
                                    .policies = &wild};
  const auto rows = policies_of_table(&table);
  ASSERT_TRUE(rows.ok()) << rows.why().message();
  auto made = rows->front().make({});
  const pool_view view = view_of(gib, 512 * mib);
  for (const std::uint64_t bytes : {std::uint64_t{0}, std::uint64_t{1}, 600 * mib, UINT64_MAX - 1, UINT64_MAX}) {
    for (const std::uint64_t least : {std::uint64_t{0}, bytes, UINT64_MAX}) {
      answered = {bytes, least};
      const segment_request grown = made->grow(view, 10 * mib);
      EXPECT_GE(grown.least_bytes, 10 * mib);
      EXPECT_LE(grown.least_bytes, grown.bytes);
      EXPECT_LE(grown.bytes, 512 * mib);
      const segment_request first = made->first(view);
      EXPECT_LE(first.bytes, 512 * mib);
      EXPECT_LE(first.least_bytes, first.bytes);
    }
  }
  answered = {0, 0};
  EXPECT_EQ(made->grow(view, gib).least_bytes, gib) << "the pool refuses what the limit does not leave";
  answered_bytes = 20 * mib;
  EXPECT_EQ(made->smaller(20 * mib, 4 * mib), 0U) << "not smaller";
  answered_bytes = 1;
  EXPECT_EQ(made->smaller(20 * mib, 4 * mib), 4 * mib);
  answered_bytes = 12 * mib;
  EXPECT_EQ(made->smaller(20 * mib, 4 * mib), 12 * mib);
  answered_class = 1;
  EXPECT_EQ(made->segment_class(512), 1U);
  answered_class = 2;
  EXPECT_EQ(made->segment_class(512), 0U);
  made.reset();
  EXPECT_EQ(closed, 1);
}

}  // namespace
}  // namespace gpumem::test
