// `gpumem plan`: places a static problem, plans a recording, and refuses bad input.
#include <fmt/format.h>

#include "program.hpp"

namespace gpumem::cli {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

using Plan = Program;

TEST_F(Plan, PlacesAStaticProblem) {
  write("small.csv", "id,lower,upper,size\n0,0,2,4\n1,1,3,4\n2,2,4,4\n");
  const outcome got =
      run("plan --static '" + path("small.csv") + "' --capacity 8 --json -o '" + path("placed.csv") + "'");
  EXPECT_EQ(got.exit_status, 0) << got.err;
  EXPECT_THAT(got.out, HasSubstr("\"buffers\":3,\"height_bytes\":8,\"lower_bound_bytes\":8"));
  EXPECT_THAT(content_of(path("placed.csv")), StartsWith("id,lower,upper,size,offset\n0,0,2,4,"));
}

TEST_F(Plan, SaysWhereAProblemCannotFit) {
  write("small.csv", "id,lower,upper,size\n0,0,2,4\n1,1,3,4\n");
  expect_refused("plan --static '" + path("small.csv") + "' --capacity 7", 1, "at time 1 buffers of 8 bytes are alive");
}

// Blocks of 14 and 11 alternate: at most 39 are live, but each of the three places must be as large as 14.
TEST_F(Plan, SaysWhichMomentsProveThatItCannotFit) {
  std::string turns = "id,lower,upper,size\n20,0,90,3\n";
  for (int i = 0; i < 20; ++i) turns += fmt::format("{},{},{},{}\n", i, 20 + 2 * i, 25 + 2 * i, i % 2 == 0 ? 14 : 11);
  write("turns.csv", turns);
  const std::string plan = "plan --static '" + path("turns.csv") + "' --capacity ";
  EXPECT_EQ(run(plan + "45").exit_status, 0);
  const outcome got = run(plan + "44");
  EXPECT_EQ(got.exit_status, 1);
  EXPECT_THAT(got.err, HasSubstr("the buffers alive from time 2"));
  EXPECT_THAT(got.err, HasSubstr("need at least 45 bytes, however they are placed, more than the capacity of 44\n"));
}

TEST_F(Plan, PlansARecording) {
  const outcome got = run("plan bench/traces/moe.csv.gz -o '" + path("moe.plan") + "'");
  EXPECT_EQ(got.exit_status, 0) << got.err;
  EXPECT_THAT(got.out, StartsWith("moe: "));
  EXPECT_FALSE(content_of(path("moe.plan")).empty());
}

// `gpumem why` names such a plan for a program that ran out of memory. Without the request it would run out again.
TEST_F(Plan, PlacesARequestThatWasRefused) {
  write("cut.csv",
        "Thread,Time,Action,Pointer,Size,Stream\n"
        "1,00:00:00:000001,allocate,0x1,4096,0\n"
        "1,00:00:00:000002,allocate failure,growth@8192,8192,0\n");
  const outcome got = run("plan '" + path("cut.csv") + "' --json -o '" + path("cut.plan") + "'");
  EXPECT_EQ(got.exit_status, 0) << got.err;
  EXPECT_THAT(got.out, HasSubstr("\"buffers\":2,\"height_bytes\":12288,"));
}

TEST_F(Plan, RefusesBadWordsInOneLine) {
  expect_refused("plan", 2, "expected a TRACE with -o PLAN");
  expect_refused("plan bench/traces/moe.csv.gz", 2, "no -o");
  expect_refused("plan --static x.csv --capacity 0", 2, "--capacity=0");
  expect_refused("plan --static '" + path("none.csv") + "'", 1, "none.csv");
  expect_refused("plan '" + path("none.csv") + "' -o x", 1, "none.csv");
  expect_refused("plan -- true", 2, "expected only with run");
}

}  // namespace
}  // namespace gpumem::cli
