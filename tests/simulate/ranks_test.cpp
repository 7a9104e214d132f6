// Ranks of one job under `gpumem simulate`: transfers by the simulated NCCL, shared cards, and ranks that end.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>
#include <sys/wait.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <string>

#include "temporary_folder.hpp"

namespace gpumem::cli {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;
using ::testing::Not;

struct outcome {
  int exit_status = -1;
  std::string out;
  std::string err;
  nlohmann::json figures;
};

class Ranks : public ::testing::Test {
 protected:
  std::string content(const std::string& name) const {
    std::ifstream file{folder_ + "/" + name};
    return {std::istreambuf_iterator<char>{file}, {}};
  }

  /// Runs a scenario of ranks_program.cpp.
  outcome run(const std::string& scenario, int ranks, const std::string& options = "",
              const std::string& environment = "") const {
    const std::string command = "cd " + folder_ + " && env -i PATH=\"$PATH\" HOME=/ TMPDIR=" + folder_ + " " +
                                environment + " timeout 280 " GPUMEM_PROGRAM " simulate --json figures.json " +
                                options + " -- " GPUMEM_TEST_RANKS " " + scenario + " " + std::to_string(ranks) +
                                " > out 2> err";
    const int status = std::system(command.c_str());
    return {WEXITSTATUS(status), content("out"), content("err"),
            nlohmann::json::parse(content("figures.json"), nullptr, false)};
  }

  temporary_folder temporary_;
  std::string folder_ = temporary_.path();
};

TEST_F(Ranks, GetEachOthersBytes) {
  for (const int ranks : {2, 3, 5}) {
    const outcome got = run("moves", ranks);
    EXPECT_EQ(got.out, "all ranks have ended\n") << ranks << " ranks: " << got.err;
    EXPECT_EQ(got.exit_status, 0) << got.err;
  }
}

TEST_F(Ranks, MeetInOneProcessToo) {
  const outcome got = run("one_process", 2, "--cards 2");
  EXPECT_EQ(got.out, "done\n") << got.err;
}

TEST_F(Ranks, KeepLargeValuesWhereAllAreKept) {
  EXPECT_EQ(run("moves", 3, "", "SIMCUDA_HOST_MEMORY=1").out, "all ranks have ended\n");
}

TEST_F(Ranks, ShareTheCardsOfTheirRun) {
  const outcome got = run("share", 2, "--card 1GiB --context 0");
  EXPECT_EQ(got.out, "all ranks have ended\n") << got.err;
  ASSERT_EQ(got.figures["oom"].size(), 1U) << got.err;
  EXPECT_EQ(got.figures["oom"][0]["rank"], 1);
  EXPECT_THAT(got.err, HasSubstr("on card 0, rank 1: cuMemAlloc of 600.00 MiB asked for with 604.00 MiB in use"));
  EXPECT_THAT(got.err, HasSubstr("others hold 602.00 MiB"));
  EXPECT_THAT(run("share", 2, "--card 1GiB --context 0 --cards 2").out, HasSubstr("both have 600 MiB\n"));
  EXPECT_THAT(run("share", 2, "--card 1GiB --context 0", "SIMCUDA_SHARED=").out, HasSubstr("both have 600 MiB\n"));
}

TEST_F(Ranks, AreNamedInTheResult) {
  const outcome got = run("moves", 2, "--cards 2 --context 2MiB");
  const auto& cards = got.figures["cards"];
  ASSERT_EQ(cards.size(), 4U) << got.err;
  for (int rank = 0; rank < 2; ++rank) {
    const auto used = std::find_if(cards.begin(), cards.end(), [rank](const auto& each) {
      return each["rank"] == rank && each["peak_live_bytes"] > 0;
    });
    ASSERT_NE(used, cards.end());
    EXPECT_EQ((*used)["card"], rank);
    EXPECT_THAT(got.err,
                HasSubstr("simulated, card " + std::to_string(rank) + ", rank " + std::to_string(rank) + ", process "));
  }
}

TEST_F(Ranks, ThatEndEarlyEndTheRunWithTheirStatus) {
  const outcome got = run("exits", 3);
  EXPECT_EQ(got.exit_status, 3) << got.err;
  EXPECT_THAT(got.out, HasSubstr("rank 0: 6: rank 0 of 3: ncclAllReduce waits for rank 1 (process "));
  EXPECT_THAT(got.out, HasSubstr("rank 2: 6: rank 2 of 3: ncclAllReduce waits for rank 1 (process "));
  EXPECT_THAT(got.out, HasSubstr("), which has ended\n"));
  EXPECT_THAT(got.err, HasSubstr("simcuda: NCCL: rank 0 of 3: ncclAllReduce waits for rank 1 (process "));
  ASSERT_EQ(got.figures["warnings"].size(), 1U) << got.figures["warnings"];
  const auto warning = got.figures["warnings"][0].get<std::string>();
  EXPECT_THAT(warning, ::testing::StartsWith("rank 1 of 3 (process "));
  EXPECT_THAT(warning, HasSubstr(") ended with status 3"));
}

TEST_F(Ranks, ThatAreKilledEndTheRunAsKilled) {
  const outcome got = run("killed", 2);
  EXPECT_EQ(got.exit_status, 137) << got.err;
  EXPECT_THAT(got.out, HasSubstr("), which has ended\n"));
  EXPECT_THAT(got.err, HasSubstr(") was killed"));
}

TEST_F(Ranks, ThatAbortAreNotWaitedFor) {
  const outcome got = run("aborts", 2);
  EXPECT_EQ(got.exit_status, 0) << got.err;
  EXPECT_THAT(got.out, HasSubstr("), which has left the communicator\n"));
}

TEST_F(Ranks, ThatCallDifferentOperationsAreTold) {
  const outcome got = run("differs", 2);
  EXPECT_THAT(got.out, HasSubstr("rank 0: 5: rank 0 of 2: ranks call different operations: ncclAllReduce of 8 bytes"));
  EXPECT_THAT(got.out, HasSubstr("rank 1: 5: rank 1 of 2: ranks call different operations: ncclAllGather of 4 bytes"));
}

TEST_F(Ranks, WaitNotForEver) {
  const std::string soon = "SIMCUDA_NCCL_WAIT=1";
  const outcome silent = run("silent", 2, "", soon);
  EXPECT_THAT(silent.out, HasSubstr("ncclAllReduce waited 1 s for rank 1 (process "));
  EXPECT_THAT(silent.out, HasSubstr("which runs and has not called it (SIMCUDA_NCCL_WAIT)"));
  const outcome alone = run("alone", 3, "", soon);
  EXPECT_THAT(alone.out, HasSubstr("of 3 ranks did not come: 1, 2 (gpumem simulate --one-rank takes them to send"));
  const outcome one = run("alone", 3, "--one-rank");
  EXPECT_THAT(one.out, HasSubstr("rank 0: 0: ")) << "each other rank sends what this one sends";
}

}  // namespace
}  // namespace gpumem::cli
