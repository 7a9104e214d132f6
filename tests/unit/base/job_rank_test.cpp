#include "job_rank.hpp"

#include <gtest/gtest.h>
#include <stdlib.h>

#include <cstdio>
#include <map>
#include <string>

#include "gpumem/settings.hpp"
#include "gpumem/statistics.hpp"
#include "log.hpp"

namespace gpumem {
namespace {

using variables = std::map<std::string, std::string>;

std::optional<job_rank> found(const variables& in) {
  return find_job_rank([&](const char* name) -> const char* {
    const auto at = in.find(name);
    return at == in.end() ? nullptr : at->second.c_str();
  });
}

TEST(job_rank, is_read_of_every_launcher) {
  const job_rank wanted{5, 1};
  EXPECT_EQ(found({{"RANK", "5"}, {"LOCAL_RANK", "1"}}), wanted);
  EXPECT_EQ(found({{"OMPI_COMM_WORLD_RANK", "5"}, {"OMPI_COMM_WORLD_LOCAL_RANK", "1"}}), wanted);
  EXPECT_EQ(found({{"PMI_RANK", "5"}, {"MPI_LOCALRANKID", "1"}}), wanted);
  EXPECT_EQ(found({{"SLURM_PROCID", "5"}, {"SLURM_LOCALID", "1"}}), wanted);
  EXPECT_EQ(found({}), std::nullopt);
}

TEST(job_rank, is_that_of_the_innermost_launcher) {
  EXPECT_EQ(found({{"SLURM_PROCID", "1"}, {"SLURM_LOCALID", "0"}, {"RANK", "9"}, {"LOCAL_RANK", "3"}}),
            (job_rank{9, 3}));
}

TEST(job_rank, is_none_where_a_name_means_something_else) {
  EXPECT_EQ(found({{"RANK", "captain"}, {"LOCAL_RANK", "1"}}), std::nullopt);
  EXPECT_EQ(found({{"RANK", "1"}}), std::nullopt);
  EXPECT_EQ(found({{"RANK", ""}, {"LOCAL_RANK", ""}}), std::nullopt);
  EXPECT_EQ(found({{"RANK", "-1"}, {"LOCAL_RANK", "0"}}), std::nullopt);
}

/// Runs in a separate process, because the rank is read once.
class in_a_job : public testing::Test {
 protected:
  void SetUp() override { GTEST_FLAG_SET(death_test_style, "threadsafe"); }
  static void be_rank_3() {
    ::setenv("RANK", "3", 1);
    ::setenv("LOCAL_RANK", "1", 1);
  }
};

TEST_F(in_a_job, messages_name_the_rank) {
  EXPECT_EXIT(
      {
        be_rank_3();
        log_line("limit reached");
        std::exit(0);
      },
      testing::ExitedWithCode(0), "^gpumem: rank 3: limit reached\n$");
  EXPECT_EXIT(
      {
        be_rank_3();
        oom_report report;
        report.pool = "0";
        report.policy = "growth";
        std::fputs(report.headline().c_str(), stderr);
        std::exit(0);
      },
      testing::ExitedWithCode(0), "^out of memory on pool 0 .growth. of rank 3: ");
}

TEST_F(in_a_job, paths_and_groups_are_the_rank_s) {
  EXPECT_EXIT(
      {
        be_rank_3();
        settings with;
        (void)with
            .apply({{"GPUMEM_TRACE", "run.%r.csv.gz"},
                    {"GPUMEM_STATS", "%r/%r.json"},
                    {"GPUMEM_PLAN", "plain.plan"},
                    {"GPUMEM_GROUP", "job%r"}})
            .ok();
        std::fprintf(stderr, "%s %s %s %s", with.trace_path.c_str(), with.stats_path.c_str(), with.plan_path.c_str(),
                     with.group.c_str());
        std::exit(0);
      },
      testing::ExitedWithCode(0), "^run.3.csv.gz 3/3.json plain.plan job3$");
}

TEST_F(in_a_job, a_rank_has_settings_of_its_own) {
  EXPECT_EXIT(
      {
        be_rank_3();
        ::setenv("GPUMEM_LIMIT", "1GiB", 1);
        ::setenv("GPUMEM_LIMIT_R3", "4GiB", 1);
        ::setenv("GPUMEM_LIMIT_R30", "nonsense", 1);
        ::setenv("GPUMEM_POLICY_R2", "grab_all", 1);
        settings with;
        std::vector<std::string> problems;
        (void)with.apply(process_environment(), &problems).ok();
        std::fprintf(stderr, "%s %s %zu", with.limit.to_string().c_str(), with.policy.c_str(), problems.size());
        std::exit(0);
      },
      testing::ExitedWithCode(0), "^4GiB growth 0$");
}

TEST_F(in_a_job, a_process_outside_of_one_is_rank_0) {
  EXPECT_EXIT(
      {
        for (const char* each : {"RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "PMIX_RANK", "SLURM_PROCID"})
          ::unsetenv(each);
        ::setenv("GPUMEM_LIMIT_R0", "2GiB", 1);
        settings with;
        (void)with.apply(process_environment()).ok();
        log_line(with_rank("run.%r.csv ") + with.limit.to_string());
        std::exit(0);
      },
      testing::ExitedWithCode(0), "^gpumem: run.0.csv 2GiB\n$");
}

}  // namespace
}  // namespace gpumem
