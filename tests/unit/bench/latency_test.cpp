/// The latency command's figures as programs read them; what is measured is the machine's business.
#include "latency.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

namespace gpumem::bench {
namespace {

TEST(latency, json_has_the_agreed_keys) {
  const std::vector<latency_row> rows{{.allocator = "gpumem/growth",
                                       .name = "pair_4KiB",
                                       .threads = 2,
                                       .oom = false,
                                       .median_ns = 20,
                                       .least_ns = 10,
                                       .most_ns = 30,
                                       .double_share_ns = {}},
                                      {.allocator = "cub",
                                       .name = "pair_4KiB",
                                       .threads = 1,
                                       .oom = false,
                                       .median_ns = 200,
                                       .least_ns = 100,
                                       .most_ns = 300,
                                       .double_share_ns = 40.0}};
  const auto all = nlohmann::json::parse(latency_json(rows, {}));
  EXPECT_EQ(all["results"][0]["allocator"], "gpumem/growth");
  EXPECT_EQ(all["results"][0]["case"], "pair_4KiB");
  EXPECT_EQ(all["results"][0]["threads"], 2);
  EXPECT_EQ(all["results"][0]["ns_per_pair"], 20);
  EXPECT_TRUE(all["results"][0]["double_share_ns"].is_null());
  EXPECT_EQ(all["results"][1]["double_share_ns"], 40);
  EXPECT_EQ(all["results"][1]["oom"], false);
  EXPECT_EQ(all["simulated"], true);
  EXPECT_THAT(latency_table(rows, {}), testing::HasSubstr("host time alone"));
}

TEST(latency, a_case_that_ran_out_of_memory_is_a_row_all_the_same) {
  latency_row failed;
  failed.allocator = "gpumem/grab_all";
  failed.name = "live_1e6";
  failed.oom = true;
  const auto all = nlohmann::json::parse(latency_json({failed}, {}));
  EXPECT_TRUE(all["results"][0]["ns_per_pair"].is_null());
  EXPECT_EQ(all["results"][0]["oom"], true);
  EXPECT_THAT(latency_table({failed}, {}), testing::HasSubstr("out of memory"));
}

}  // namespace
}  // namespace gpumem::bench
