// `gpumem convert`, and `gpumem run` as a rank of a job.
#include <filesystem>
#include <nlohmann/json.hpp>

#include "program.hpp"

namespace gpumem::cli {
namespace {

using testing::HasSubstr;
using testing::Not;

using Convert = Program;
using RunAsRank = Program;

TEST_F(Convert, GoesBothWays) {
  const outcome there = run("convert bench/traces/serve.csv.gz -o '" + path("t.gmtrace") + "' --json");
  EXPECT_EQ(there.exit_status, 0) << there.err;
  const auto figures = nlohmann::json::parse(there.out);
  EXPECT_EQ(figures["ops"], 50674);
  EXPECT_GT(figures["input"]["bytes"], figures["output"]["bytes"].get<double>() * 5);
  const outcome back = run("convert '" + path("t.gmtrace") + "' -o '" + path("t.csv.gz") + "'");
  EXPECT_EQ(back.exit_status, 0) << back.err;
  EXPECT_EQ(back.out, "");
  const outcome again = run("convert '" + path("t.csv.gz") + "' -o '" + path("u.gmtrace") + "'");
  EXPECT_EQ(again.exit_status, 0) << again.err;
  EXPECT_EQ(content_of(path("u.gmtrace")), content_of(path("t.gmtrace")));
}

TEST_F(Convert, RefusesBadWordsInOneLine) {
  expect_refused("convert", 2, "expected gpumem convert IN -o OUT");
  expect_refused("convert '" + path("none.csv") + "' -o x.csv", 1, "none.csv: no such file");
  expect_refused("convert bench/traces/serve.csv.gz -o '" + path("t.txt") + "'", 1,
                 "ends in .gmtrace, .csv or .csv.gz");
  write("half.gmtrace", std::string("GMTRACE\x01", 8) + "half");
  expect_refused("convert '" + path("half.gmtrace") + "' -o x.csv", 1, "half.gmtrace: cut short: less than a header");
  EXPECT_FALSE(std::filesystem::exists("x.csv"));
}

TEST_F(RunAsRank, NamesTheRankAndObeysItsOwnSettings) {
  const std::string rank_3 = "RANK=3 LOCAL_RANK=1 ";
  expect_refused("run --policy grwth -- true", 2, "gpumem: rank 3: ", rank_3);
  const outcome got = run("run --limit 1GiB -- env", rank_3 + "GPUMEM_LIMIT_R3=2GiB GPUMEM_TRACE=run.%r.csv.gz");
  EXPECT_EQ(got.exit_status, 0) << got.err;
  EXPECT_THAT(got.out, HasSubstr("GPUMEM_LIMIT=1GiB\n"));
  EXPECT_THAT(got.out, Not(HasSubstr("GPUMEM_LIMIT_R3")));
  EXPECT_THAT(got.out, HasSubstr("GPUMEM_TRACE=run.%r.csv.gz\n"));
}

}  // namespace
}  // namespace gpumem::cli
