#include "shard.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <numeric>

#include "sweep_progress.hpp"

namespace gpumem::bench::sweep {
namespace {

TEST(shard, is_read_strictly) {
  const auto read = parse_shard("3/8");
  ASSERT_TRUE(read);
  EXPECT_EQ(read->index, 3U);
  EXPECT_EQ(read->count, 8U);
  for (const char* wrong : {"", "3", "0/8", "9/8", "3/", "/8", "3/8/1", "-1/8", "a/b", "3 /8"}) {
    EXPECT_FALSE(parse_shard(wrong)) << wrong;
  }
}

TEST(shard, shares_all_units_among_all) {
  std::vector<std::uint32_t> order(23);
  std::iota(order.begin(), order.end(), 100U);
  std::vector<std::uint32_t> all;
  for (unsigned k = 1; k <= 4; ++k) {
    const auto own = units_of({k, 4}, order);
    EXPECT_GE(own.size(), 5U);
    all.insert(all.end(), own.begin(), own.end());
  }
  EXPECT_THAT(all, testing::UnorderedElementsAreArray(order));
}

std::map<std::string, std::string> variables;
const char* variable(const char* name) {
  const auto found = variables.find(name);
  return found == variables.end() ? nullptr : found->second.c_str();
}

TEST(shard, is_that_of_an_array_s_task) {
  variables.clear();
  EXPECT_FALSE(shard_of_array(variable)->has_value());
  variables = {{"SLURM_ARRAY_TASK_ID", "5"}, {"SLURM_ARRAY_TASK_COUNT", "8"}};
  EXPECT_EQ((*shard_of_array(variable))->index, 6U);
  variables = {{"SLURM_ARRAY_TASK_ID", "14"},
               {"SLURM_ARRAY_TASK_COUNT", "4"},
               {"SLURM_ARRAY_TASK_MIN", "10"},
               {"SLURM_ARRAY_TASK_STEP", "2"}};
  EXPECT_EQ((*shard_of_array(variable))->index, 3U);
  EXPECT_EQ((*shard_of_array(variable))->count, 4U);
  variables = {{"SLURM_ARRAY_TASK_ID", "8"}, {"SLURM_ARRAY_TASK_COUNT", "8"}};  // 1,2,8: no equal steps
  EXPECT_FALSE(shard_of_array(variable));
  variables = {{"SLURM_ARRAY_TASK_ID", "x"}, {"SLURM_ARRAY_TASK_COUNT", "8"}};
  EXPECT_FALSE(shard_of_array(variable));
  variables = {{"SLURM_ARRAY_TASK_ID", "1"}};
  EXPECT_FALSE(shard_of_array(variable));
}

TEST(sweep_progress, says_rate_and_end) {
  EXPECT_EQ(progress_text(0, 10, 0, 0, 0), "0 of 10 units");
  EXPECT_EQ(progress_text(60, 160, 2, 50, 10), "60 of 160 units, 2 failed, 5/s, about 20 s left");
  EXPECT_EQ(progress_text(100, 100000, 0, 100, 10), "100 of 100000 units, 10/s, about 2.8 h left");
  EXPECT_EQ(progress_text(10, 10, 0, 10, 2), "10 of 10 units, 5/s");
}

}  // namespace
}  // namespace gpumem::bench::sweep
