#include "summary.hpp"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

namespace gpumem::bench::sweep {
namespace {

summary_row row(const char* trace, const char* policy, double utilization, double ms = 1, bool oom = false) {
  return {.trace = trace,
          .policy = policy,
          .rest = "sim",
          .oom = oom,
          .takes_everything = std::string{policy} == "grab_all",
          .utilization = utilization,
          .device_ms = ms};
}

TEST(summary, says_who_is_best_and_who_loses) {
  summary all;
  all.add(row("net-1", "growth", 0.80, 3));
  all.add(row("net-1", "caching", 0.90, 2));
  all.add(row("net-1", "grab_all", 0.01, 1));
  all.add(row("net-2", "growth", 0.90, 3));
  all.add(row("net-2", "caching", 0.90, 4));
  all.add(row("net-2", "grab_all", 0.01, 1));
  all.add(row("serve-1", "growth", 0.89, 3));
  all.add(row("serve-1", "caching", 0.40, 1, true));
  all.add(row("serve-1", "grab_all", 0.01, 2));
  const auto made = all.to_json();
  EXPECT_EQ(made["cases"], 3);
  const auto& growth = made["policies"][0];
  EXPECT_EQ(growth["policy"], "growth");
  EXPECT_EQ(growth["best"], 2);
  EXPECT_EQ(growth["alone_best"], 1);
  EXPECT_EQ(growth["lost"], 1);
  EXPECT_EQ(growth["worst"][0]["trace"], "net-1");
  EXPECT_EQ(growth["worst"][0]["best_policy"], "caching");
  EXPECT_EQ(growth["utilization"]["median"], 0.89);
  EXPECT_EQ(growth["utilization"]["curve"].size(), 101U);
  const auto& caching = made["policies"][1];
  EXPECT_EQ(caching["oom"], 1);
  EXPECT_EQ(caching["lost"], 1);
  EXPECT_EQ(caching["cheapest"], 0);
  const auto& grab_all = made["policies"][2];
  EXPECT_EQ(grab_all["best"], 0);
  EXPECT_TRUE(grab_all["utilization"].is_null());
  EXPECT_EQ(grab_all["cheapest"], 3);
  EXPECT_EQ(made["kinds"].size(), 2U);
  EXPECT_EQ(made["kinds"][0]["kind"], "net");
  EXPECT_EQ(made["kinds"][0]["policies"][1]["best"], 2);
  EXPECT_EQ(made["pairs"][1][0], 0.5);
}

TEST(summary, counts_what_failed_as_nothing_else) {
  summary all;
  all.add(row("a", "growth", 0.9));
  summary_row broken = row("a", "caching", 0);
  broken.failed = true;
  all.add(broken);
  const auto made = all.to_json();
  EXPECT_EQ(made["policies"][1]["failed"], 1);
  EXPECT_EQ(made["policies"][1]["lost"], 0);
  EXPECT_TRUE(made["policies"][1]["utilization"].is_null());
}

}  // namespace
}  // namespace gpumem::bench::sweep
