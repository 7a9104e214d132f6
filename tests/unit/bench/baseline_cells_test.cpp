/// If a baseline fails, its cell shows the reason and the comparison continues.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>

#include <cstdlib>
#include <nlohmann/json.hpp>

#include "test_files.hpp"

namespace gpumem::bench {
namespace {

using json = nlohmann::json;

class baseline_cells : public testing::Test {
 protected:
  json compare(const std::string& words, const std::string& environment = "") {
    const std::string out = folder_.path("out");
    const std::string command = "env -i PATH=\"$PATH\" " + environment +
                                " '" GPUMEM_BENCH_PROGRAM "' compare --quiet --trace '" + trace() +
                                "' --policy growth " + words + " --json '" + out + "' >'" + folder_.path("table") + "'";
    const int code = std::system(command.c_str());
    EXPECT_TRUE(WIFEXITED(code) && WEXITSTATUS(code) == 0) << command;
    return json::parse(std::ifstream{out})["results"];
  }

  /// 60 blocks of 1 MiB, each freed after the next allocation, so that two streams share them.
  std::string trace() {
    std::string rows;
    for (int i = 0; i < 60; ++i) {
      rows += "1,00:00:00:000000,allocate," + std::to_string(i + 1) + "00,1048576,0\n";
      if (i > 0) rows += "1,00:00:00:000000,free," + std::to_string(i) + "00,1048576,0\n";
    }
    return folder_.write("t.csv", csv(rows));
  }

  [[nodiscard]] std::string table() const {
    std::ostringstream all;
    all << std::ifstream{folder_.path("table")}.rdbuf();
    return all.str();
  }

  test_folder folder_;
};

TEST_F(baseline_cells, cub_over_two_streams_has_figures) {
  const json rows = compare("--shared-use 50% --baseline cub");
  ASSERT_EQ(rows.size(), 3U);
  for (const json& row : rows) {
    EXPECT_EQ(row["failed"], nullptr) << row;
    EXPECT_EQ(row["hazards"], 0) << row;
    EXPECT_GT(row["peak_reserved_bytes"], 0) << row;
  }
}

TEST_F(baseline_cells, tell_the_reason_and_leave_the_others_alone) {
  const json rows = compare("--baseline cuda_malloc --baseline cub", "SIMCUDA_FAIL=cuMemAlloc:7:999");
  ASSERT_EQ(rows.size(), 4U);
  EXPECT_EQ(rows[0]["failed"], nullptr);
  EXPECT_GT(rows[0]["host_ns_per_op"], 0);
  int failed = 0;
  for (const json& row : rows) {
    if (row["failed"].is_null()) continue;
    ++failed;
    EXPECT_THAT(row["failed"].get<std::string>(), testing::HasSubstr("allocate failed: unknown error"));
    for (const char* key : {"peak_reserved_bytes", "utilization", "host_ns_per_op", "hazards"}) {
      EXPECT_EQ(row[key], nullptr) << key;
    }
    EXPECT_EQ(row["device_calls"]["alloc"], nullptr);
  }
  EXPECT_GE(failed, 1);
  EXPECT_THAT(table(), testing::HasSubstr("failed: "));
}

TEST_F(baseline_cells, rows_say_what_they_replay) {
  compare("--policy multi_pool,pools=50%+50% --policy growth,tenants=3");
  EXPECT_THAT(table(),
              testing::HasSubstr("multi_pool,pools=50%+50% replays the trace 2 times at once, half a trace out of "
                                 "step, one tenant to a pool"));
  EXPECT_THAT(table(), testing::HasSubstr("growth,tenants=3 replays the trace 3 times at once"));
}

}  // namespace
}  // namespace gpumem::bench
