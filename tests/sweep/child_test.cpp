#include "child.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>

namespace gpumem::bench::sweep {
namespace {

using namespace std::chrono_literals;

result<child_outcome> shell(const std::string& text, const std::string& input = "",
                            std::chrono::milliseconds limit = 60s) {
  return run_child("/bin/sh", {"-c", text}, input, limit);
}

TEST(child, passes_text_through) {
  const std::string long_text(3'000'000, 'x');
  const auto got = shell("cat; echo wrong >&2; exit 7", long_text);
  ASSERT_TRUE(got) << got.why().message();
  EXPECT_EQ(got->output, long_text);
  EXPECT_EQ(got->err, "wrong\n");
  EXPECT_EQ(got->exit_status, 7);
  EXPECT_EQ(got->signal, 0);
}

TEST(child, is_told_by_its_signal) {
  const auto got = shell("kill -SEGV $$");
  ASSERT_TRUE(got);
  EXPECT_EQ(got->signal, SIGSEGV);
}

TEST(child, is_killed_when_its_time_is_up) {
  for (const char* text : {"sleep 60", "exec 1>&- 2>&- 0<&-; sleep 60"}) {
    const auto began = std::chrono::steady_clock::now();
    const auto got = shell(text, "", 200ms);
    ASSERT_TRUE(got);
    EXPECT_TRUE(got->timed_out) << text;
    EXPECT_LT(std::chrono::steady_clock::now() - began, 30s);
  }
}

TEST(child, gets_nothing_of_the_launcher) {
  for (const char* name : {"OMPI_COMM_WORLD_RANK", "PMI_RANK", "PMIX_RANK", "SLURM_PROCID", "RANK", "GPUMEM_POLICY"}) {
    ::setenv(name, "1", 1);
  }
  ::setenv("RANKING", "stays", 1);
  const auto got = shell("env");
  ASSERT_TRUE(got);
  EXPECT_THAT(got->output, testing::Not(testing::ContainsRegex("(^|\n)(OMPI_|PMI|SLURM_|RANK=|GPUMEM_)")));
  EXPECT_THAT(got->output, testing::HasSubstr("RANKING=stays"));
}

TEST(child, that_does_not_exist_is_said) {
  const auto got = run_child("/nonexistent/program", {}, "", 1s);
  EXPECT_FALSE(got);
  EXPECT_THAT(got.why().message(), testing::HasSubstr("no process can be started"));
}

}  // namespace
}  // namespace gpumem::bench::sweep
