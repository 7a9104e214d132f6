/// The JSON of the latency command, and the arithmetic of its ratios. Measured values depend on the machine and are not
/// tested.
#include "latency.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <numeric>

namespace gpumem::bench {
namespace {

const std::string ours = "gpumem/growth";

latency_row row(std::string allocator, std::string name, double ns, unsigned threads = 1) {
  latency_row out;
  out.allocator = std::move(allocator);
  out.name = std::move(name);
  out.threads = threads;
  out.median_ns = ns;
  out.least_ns = ns / 2;
  out.most_ns = ns * 2;
  return out;
}

latency_row with_share(latency_row of, double ns) {
  of.simulated_share_ns = ns;
  of.least_share_ns = ns / 5;
  return of;
}

latency_row replay(std::string allocator, double ns) {
  latency_row out = row(std::move(allocator), "replay_lstm", ns);
  out.iteration = iteration_kind::operation;
  return out;
}

latency_row worst(std::string allocator, double p99_999_us) {
  latency_row out = row(std::move(allocator), "worst", 80);
  out.iteration = iteration_kind::other;
  out.tail = tail_times{.p50_us = 0.1,
                        .p99_us = 0.2,
                        .p99_9_us = 0.3,
                        .p99_999_us = p99_999_us,
                        .max_us = 90,
                        .p99_999_of_medians_us = p99_999_us / 5,
                        .max_of_medians_us = 8,
                        .ops = 4'000'000,
                        .device_ops = 3,
                        .preemptions = 9};
  return out;
}

/// The ratio of that name; fails the test unless there is exactly one.
latency_ratio only(const std::vector<latency_ratio>& all, const std::string& name) {
  EXPECT_EQ(std::count_if(all.begin(), all.end(), [&](const auto& r) { return r.name == name; }), 1) << name;
  const auto found = std::find_if(all.begin(), all.end(), [&](const auto& r) { return r.name == name; });
  return found != all.end() ? *found : latency_ratio{};
}

TEST(latency, json_has_the_agreed_keys) {
  const std::vector<latency_row> rows{row(ours, "pair_4KiB", 20, 2), with_share(row("cub", "pair_4KiB", 200), 40),
                                      replay(ours, 15), worst(ours, 12.5)};
  const auto all = nlohmann::json::parse(latency_json(rows, {}));
  const auto& results = all["results"];
  EXPECT_EQ(results[0]["allocator"], ours);
  EXPECT_EQ(results[0]["case"], "pair_4KiB");
  EXPECT_EQ(results[0]["threads"], 2);
  EXPECT_EQ(results[0]["ns_per_pair"], 20);
  EXPECT_TRUE(results[0]["ns_per_op"].is_null());
  EXPECT_TRUE(results[0]["double_share_ns"].is_null());
  EXPECT_TRUE(results[0]["tail"].is_null());
  EXPECT_EQ(results[1]["double_share_ns"], 40);
  EXPECT_EQ(results[1]["oom"], false);
  EXPECT_TRUE(results[2]["ns_per_pair"].is_null());
  EXPECT_EQ(results[2]["ns_per_op"], 15);
  EXPECT_TRUE(results[3]["ns_per_pair"].is_null());
  EXPECT_EQ(results[3]["tail"]["p99_999_us"], 12.5);
  EXPECT_EQ(results[3]["tail"]["p99_999_of_medians_us"], 2.5);
  EXPECT_EQ(results[3]["tail"]["max_of_medians_us"], 8);
  EXPECT_EQ(results[3]["tail"]["ops"], 4'000'000);
  EXPECT_EQ(results[3]["tail"]["device_ops"], 3);
  EXPECT_EQ(results[3]["tail"]["preemptions"], 9);
  EXPECT_EQ(all["simulated"], true);
  EXPECT_THAT(latency_table(rows, {}), testing::HasSubstr("Host time only"));
}

TEST(latency, a_case_that_ran_out_of_memory_is_a_row_all_the_same) {
  latency_row failed = row("gpumem/grab_all", "live_1e6", 0);
  failed.oom = true;
  const auto all = nlohmann::json::parse(latency_json({failed, row("floor", "chase_1e6", 100)}, {}));
  EXPECT_TRUE(all["results"][0]["ns_per_pair"].is_null());
  EXPECT_EQ(all["results"][0]["oom"], true);
  EXPECT_TRUE(all["ratios"].empty()) << "no time, nothing to compare";
  EXPECT_THAT(latency_table({failed}, {}), testing::HasSubstr("out of memory"));
}

// The bound applies to whole times, as a program sees them; own code excludes the time of the simulated driver.
TEST(latency, a_pair_is_compared_with_the_fastest_cub) {
  const std::vector<latency_row> rows{with_share(row(ours, "pair_4KiB", 25), 5),
                                      row(ours, "pair_2MiB", 50),
                                      with_share(row("cub", "pair_4KiB", 300), 60),
                                      with_share(row("cub", "pair_2MiB", 460), 60),
                                      with_share(row("cub_default", "pair_4KiB", 270), 70),
                                      with_share(row("cub_default", "pair_2MiB", 9000), 70)};
  const auto all = latency_ratios(rows);
  const latency_ratio small = only(all, "pair_4KiB cub/gpumem");
  EXPECT_DOUBLE_EQ(small.value, 270.0 / 25);
  EXPECT_DOUBLE_EQ(small.own_code.value_or(0), (270.0 - 70) / (25 - 5));
  EXPECT_DOUBLE_EQ(small.of_least.value_or(0), 135.0 / 12.5);
  EXPECT_EQ(small.bound, ">= 8");
  EXPECT_EQ(small.allocator, ours);
  EXPECT_EQ(small.medians, "cub_default 270.0 / 25.0 ns");
  const latency_ratio large = only(all, "pair_2MiB cub/gpumem");
  EXPECT_DOUBLE_EQ(large.value, 460.0 / 50);
  EXPECT_DOUBLE_EQ(large.own_code.value_or(0), (460.0 - 60) / 50);
  EXPECT_EQ(large.bound, ">= 8");
}

TEST(latency, two_threads_are_compared_with_what_two_threads_of_the_machine_do) {
  const std::vector<latency_row> rows{row("floor", "spin", 40), row("floor", "spin", 25, 2), row(ours, "pair_4KiB", 30),
                                      row(ours, "pair_4KiB", 20, 2), row(ours, "pair_4KiB", 1, 3)};
  const latency_ratio scaling = only(latency_ratios(rows), "pair_4KiB 2 threads, of spin's scaling");
  EXPECT_DOUBLE_EQ(scaling.value, (30.0 / 20) / (40.0 / 25));
  EXPECT_EQ(scaling.bound, "");
}

TEST(latency, a_hand_off_is_compared_with_a_pair) {
  const std::vector<latency_row> rows{row(ours, "pair_4KiB", 30), row(ours, "handoff", 75)};
  const auto all = latency_ratios(rows);
  EXPECT_DOUBLE_EQ(only(all, "handoff / pair_4KiB").value, 2.5);
  EXPECT_EQ(only(all, "handoff / pair_4KiB").bound, "");
}

TEST(latency, a_row_that_asks_the_device_has_figures_and_no_bounds) {
  const std::string quiet = "gpumem/growth,stream_ids=notify";
  const std::vector<latency_row> rows{row(ours, "pair_4KiB", 40), row(ours, "driver_part", 20),
                                      row(quiet, "pair_4KiB", 20), row("cub", "pair_4KiB", 200)};
  const auto all = latency_ratios(rows);
  ASSERT_EQ(all.size(), 2U);
  EXPECT_EQ(all[0].allocator, ours);
  EXPECT_DOUBLE_EQ(all[0].value, 5);
  EXPECT_EQ(all[0].bound, "");
  EXPECT_EQ(all[1].allocator, quiet);
  EXPECT_EQ(all[1].bound, ">= 8");
  const auto read = nlohmann::json::parse(latency_json(rows, {}));
  EXPECT_TRUE(read["ratios"][0]["bound"].is_null());
  EXPECT_EQ(read["ratios"][1]["bound"], ">= 8");
}

TEST(latency, a_replay_has_a_ratio_for_each_trace_and_row) {
  const std::string other = "gpumem/caching";
  const std::vector<latency_row> rows{replay("floor", 2), replay(ours, 18), replay(other, 36),
                                      with_share(replay("cub", 120), 30)};
  const auto all = latency_ratios(rows);
  ASSERT_EQ(all.size(), 2U) << "none for the floor and CUB themselves";
  EXPECT_EQ(all[0].name, "replay_lstm cub/gpumem");
  EXPECT_DOUBLE_EQ(all[0].value, 120.0 / 18);
  EXPECT_DOUBLE_EQ(all[0].own_code.value_or(0), 90.0 / 18);
  EXPECT_EQ(all[0].bound, ">= 3");
  EXPECT_EQ(all[1].allocator, other);
  EXPECT_DOUBLE_EQ(all[1].value, 120.0 / 36);
}

// The machine is twice as slow in some rounds, and the two medians come from different rounds: their ratio would be 8.
TEST(latency, what_was_measured_in_the_same_rounds_is_compared_round_by_round) {
  latency_row pair = row(ours, "pair_2MiB", 20);
  latency_row cub = with_share(row("cub", "pair_2MiB", 200), 40);
  pair.rounds = {round_time{10}, round_time{20}, {}, round_time{20}, round_time{10}};
  cub.rounds = {round_time{200, 40}, round_time{400, 80}, round_time{1, 0}, {}, round_time{200, 40}};
  const auto all = latency_ratios({pair, cub});
  const latency_ratio ratio = only(all, "pair_2MiB cub/gpumem");
  EXPECT_DOUBLE_EQ(ratio.value, 20);
  EXPECT_DOUBLE_EQ(ratio.own_code.value_or(0), 16);
  EXPECT_DOUBLE_EQ(ratio.of_least.value_or(0), 100.0 / 10) << "of the least times, whatever the round";
  EXPECT_EQ(ratio.medians, "cub 200.0 / 20.0 ns");

  pair.rounds = {round_time{75, 71}, round_time{70, 71}, round_time{69, 71}};
  cub.rounds = {round_time{220, 71}, round_time{220, 71}, round_time{220, 71}};
  const latency_ratio too_fast = only(latency_ratios({pair, cub}), "pair_2MiB cub/gpumem");
  EXPECT_DOUBLE_EQ(too_fast.value, 220.0 / 70);
  EXPECT_FALSE(too_fast.own_code) << "the double took longer at other moments";
  pair.rounds = {round_time{81, 71}, round_time{70, 71}, round_time{91, 71}};
  EXPECT_DOUBLE_EQ(only(latency_ratios({pair, cub}), "pair_2MiB cub/gpumem").own_code.value_or(0),
                   (220.0 - 71) / (81 - 71));

  latency_row one = row(ours, "pair_4KiB", 30);
  latency_row handed = row(ours, "handoff", 30);
  one.rounds = {round_time{10}, round_time{30}, round_time{30}};
  handed.rounds = {round_time{15}, round_time{45}, round_time{30}};
  EXPECT_DOUBLE_EQ(only(latency_ratios({one, handed}), "handoff / pair_4KiB").value, 1.5);
}

TEST(latency, ratios_stand_in_the_table_and_in_the_json) {
  const std::vector<latency_row> rows{row(ours, "pair_4KiB", 30), row(ours, "handoff", 45),
                                      with_share(row("cub", "pair_4KiB", 300), 75)};
  const auto all = nlohmann::json::parse(latency_json(rows, {}));
  ASSERT_EQ(all["ratios"].size(), 2U);
  EXPECT_EQ(all["ratios"][0]["value"], 10);
  EXPECT_EQ(all["ratios"][0]["own_code"], 7.5);
  EXPECT_EQ(all["ratios"][0]["bound"], ">= 8");
  EXPECT_EQ(all["ratios"][1]["name"], "handoff / pair_4KiB");
  EXPECT_EQ(all["ratios"][1]["value"], 1.5);
  EXPECT_EQ(all["ratios"][1]["of_least"], 1.5);
  EXPECT_TRUE(all["ratios"][1]["own_code"].is_null());
  EXPECT_TRUE(all["ratios"][1]["bound"].is_null());
  EXPECT_EQ(all["ratios"][1]["of"], ours);
  EXPECT_THAT(latency_table(rows, {}), testing::ContainsRegex("pair_4KiB cub/gpumem +10\\.00 +10\\.00 +7\\.50 +>= 8"));
  EXPECT_THAT(latency_table(rows, {}), testing::HasSubstr("handoff / pair_4KiB"));
}

TEST(latency, a_percentile_is_the_least_time_that_so_many_did_not_exceed) {
  operation_times times{1'000'000, 1};
  times.begin_repetition();
  for (int ns = 1'000'000; ns > 0; --ns) times.add(std::chrono::nanoseconds{ns});  // 1 ns to 1 ms, the slowest first
  const tail_times t = tail_of(times, 7);
  EXPECT_DOUBLE_EQ(t.p50_us, 500);
  EXPECT_DOUBLE_EQ(t.p99_us, 990);
  EXPECT_DOUBLE_EQ(t.p99_9_us, 999);
  EXPECT_DOUBLE_EQ(t.p99_999_us, 999.99);
  EXPECT_DOUBLE_EQ(t.max_us, 1000);
  EXPECT_DOUBLE_EQ(t.p99_999_of_medians_us, 999.99);
  EXPECT_EQ(t.ops, 1'000'000U);
  EXPECT_EQ(t.device_ops, 7U);
  EXPECT_EQ(tail_of(operation_times{10, 3}, {}).ops, 0U);
}

// The second operation is slow by itself, the machine disturbs a different one each time, the fourth called the device.
TEST(latency, the_median_of_an_operation_is_its_own) {
  operation_times times{4, 3};
  for (const int disturbed : {0, 2, 1}) {
    times.begin_repetition();
    for (int k = 0; k < 3; ++k) times.add(std::chrono::microseconds{k == disturbed ? 900 : k == 1 ? 7 : 2});
    times.add_unknown();
  }
  times.begin_repetition();  // beyond the announced number
  times.add(std::chrono::microseconds{5000});
  EXPECT_EQ(times.medians(), (std::vector<std::uint32_t>{2000, 7000, 2000}));
  EXPECT_EQ(times.all().size(), 9U);
  const tail_times t = tail_of(times, 3);
  EXPECT_DOUBLE_EQ(t.max_us, 900);
  EXPECT_DOUBLE_EQ(t.max_of_medians_us, 7);
  EXPECT_EQ(t.ops, 9U);
}

}  // namespace
}  // namespace gpumem::bench
