/// Replays of small traces with known results, and planted faults that must be detected.
#include "replay.hpp"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "bits.hpp"
#include "early_allocator.hpp"
#include "measure.hpp"
#include "test_files.hpp"

namespace gpumem::bench {
namespace {

policy_row row_of(std::string_view text) {
  auto row = parse_policy_row(text, settings{}, "");
  EXPECT_TRUE(row.ok()) << row.why().message();
  return *std::move(row);
}

replay_setup setup_of(std::uint64_t device_bytes) {
  replay_setup out;
  out.device.capacity_bytes = device_bytes;
  return out;
}

compare_figures figures_of(const trace& t, std::string_view policy, const replay_setup& setup) {
  const auto figures = measure_checked(t, row_of(policy), setup);
  EXPECT_TRUE(figures.ok()) << figures.why().message();
  return *figures;
}

TEST(replay, measures_live_reserved_and_device_calls) {
  const trace t = trace_of(
      "1,00:00:00:000000,allocate,0xa0,100,0\n"
      "1,00:00:00:000000,allocate,0xb0,600,0\n"
      "1,00:00:02:000000,free,0xa0,100,0\n"
      "1,00:00:02:000000,allocate,0xa0,100,0\n");
  const compare_figures figures = figures_of(t, "grab_all,reserve=0", setup_of(64 * mib));
  EXPECT_EQ(figures.outcome.ops, 4U);
  EXPECT_EQ(figures.outcome.peak_live_bytes, 512U + 1024U);
  EXPECT_EQ(figures.peak_reserved_bytes, 64 * mib);
  EXPECT_DOUBLE_EQ(figures.utilization(), 1536.0 / static_cast<double>(64 * mib));
  EXPECT_EQ(figures.calls->at(static_cast<std::size_t>(device_call::alloc)), 1U);
  EXPECT_EQ(figures.calls->at(static_cast<std::size_t>(device_call::free)), 0U);
  EXPECT_GT(figures.in_device_calls_ns, 0U);
  EXPECT_EQ(figures.hazards, 0U);
  EXPECT_FALSE(figures.outcome.oom);
}

TEST(replay, tells_warm_up_from_what_comes_later) {
  std::string rows;
  for (const int step : {0, 1, 2, 3}) {
    rows +=
        fmt::format("1,00:00:0{0}:000000,allocate,0xa0,67108864,0\n1,00:00:0{0}:000000,free,0xa0,67108864,0\n", step);
  }
  const compare_figures repeats = figures_of(trace_of(rows), "growth", setup_of(gib));
  ASSERT_TRUE(repeats.second_half);
  EXPECT_EQ(repeats.second_half->memory_calls, 0U) << "the first step took the memory";
  EXPECT_GT(repeats.in_device_calls_ns, repeats.second_half->in_device_calls_ns);
  EXPECT_EQ(repeats.waste_bytes(), 0U);
  const trace grows = trace_of(
      "1,00:00:00:000000,allocate,0xa0,512,0\n"
      "1,00:00:00:000000,allocate,0xb0,67108864,0\n");
  const compare_figures later = figures_of(grows, "caching", setup_of(gib));
  EXPECT_EQ(later.second_half->memory_calls, 1U) << "the second of two segments";
  EXPECT_EQ(later.waste_bytes(), 2 * mib - 512);
}

/// Allocates A, B and C of 1 MiB, frees B, allocates D of 2 MiB: B's hole and 3 MiB after D are free.
TEST(replay, samples_fragmentation_where_most_is_live) {
  const trace t = trace_of(
      "1,00:00:00:000000,allocate,0xa0,1048320,0\n"
      "1,00:00:00:000000,allocate,0xb0,1048576,0\n"
      "1,00:00:00:000000,allocate,0xc0,1048576,0\n"
      "1,00:00:00:000000,free,0xb0,1048576,0\n"
      "1,00:00:00:000000,allocate,0xd0,2097152,0\n"
      "1,00:00:00:000000,free,0xa0,1048320,0\n"
      "1,00:00:00:000000,free,0xc0,1048576,0\n");
  const compare_figures figures = figures_of(t, "grab_all,reserve=0", setup_of(8 * mib));
  EXPECT_DOUBLE_EQ(figures.outcome.at_peak.external, 0.25);
  EXPECT_EQ(figures.outcome.at_peak.largest_free_bytes, 3 * mib);
  EXPECT_DOUBLE_EQ(figures.outcome.at_peak.internal, 256.0 / static_cast<double>(4 * mib));
}

TEST(replay, stops_where_memory_runs_out) {
  const trace t = trace_of(
      "1,00:00:00:000000,allocate,0xa0,1048576,0\n"
      "1,00:00:00:000000,free,0xa0,1048576,0\n"
      "1,00:00:00:000000,allocate,0xb0,1048576,0\n"
      "1,00:00:00:000000,allocate,0xc0,9000000,0\n"
      "1,00:00:00:000000,allocate,0xd0,512,0\n");
  replay_setup shared_card = setup_of(64 * mib);
  shared_card.device.foreign_bytes = 56 * mib;
  const compare_figures full = figures_of(t, "growth", shared_card);
  EXPECT_TRUE(full.outcome.oom);
  EXPECT_EQ(full.outcome.ops, 3U);
  EXPECT_EQ(full.outcome.cause, oom_cause::device_full);
  EXPECT_EQ(full.outcome.peak_live_bytes, 1 * mib) << "what was replayed";
  const compare_figures capped = figures_of(t, "growth,limit=4MiB", setup_of(64 * mib));
  EXPECT_TRUE(capped.outcome.oom);
  EXPECT_EQ(capped.outcome.cause, oom_cause::limit);
}

constexpr std::string_view two_streams =
    "1,00:00:00:000000,allocate,0xa0,4096,1\n"
    "1,00:00:00:000010,free,0xa0,4096,1\n"
    "1,00:00:00:000020,allocate,0xa0,4096,2\n"
    "1,00:00:00:000030,free,0xa0,4096,2\n";

TEST(replay, sees_a_block_that_another_stream_may_still_use) {
  const trace t = trace_of(two_streams);
  sim_device on;
  early_allocator over{on};
  ASSERT_TRUE(replay_checked({.recorded = &t, .second_uses = {}}, over, on).ok());
  ASSERT_EQ(on.hazard_count(), 1U);
  EXPECT_EQ(on.hazards().front().kind, hazard_kind::early_reuse);
  for (const std::string_view policy : {"growth", "caching", "grab_all", "growth,stream_reuse=host"}) {
    EXPECT_EQ(figures_of(t, policy, {}).hazards, 0U) << policy;
  }
}

TEST(replay, sees_nothing_early_once_the_device_has_caught_up) {
  trace t = trace_of(two_streams);
  sim_device on;
  early_allocator over{on};
  t.ops[2].time_ns = t.ops[3].time_ns = 3'000'000'000;
  ASSERT_TRUE(replay_checked({.recorded = &t, .second_uses = {}}, over, on).ok());
  EXPECT_GE(on.now_ns(), 3'000'000'000U) << "the trace's own time passes";
}

TEST(replay, sees_a_use_on_a_second_stream_that_was_forgotten) {
  const trace t = trace_of(
      "1,00:00:00:000000,allocate,0xa0,4096,0\n"
      "1,00:00:00:000010,free,0xa0,4096,0\n"
      "1,00:00:00:000020,allocate,0xa0,4096,0\n");
  const std::vector<second_use> uses = plan_second_uses(t, 1.0, 1);
  sim_device on;
  early_allocator over{on};
  ASSERT_TRUE(replay_checked({.recorded = &t, .second_uses = uses}, over, on).ok());
  EXPECT_EQ(on.hazard_count(), 1U);
  replay_setup setup;
  setup.shared_use = 1.0;
  EXPECT_EQ(figures_of(t, "growth", setup).hazards, 0U);
}

TEST(replay, counts_a_free_on_another_stream_as_a_use_there) {
  const trace t = trace_of(
      "1,00:00:00:000000,allocate,0xa0,4096,1\n"
      "1,00:00:00:000010,free,0xa0,4096,2\n"
      "1,00:00:00:000020,allocate,0xa0,4096,1\n");
  sim_device on;
  early_allocator over{on};
  ASSERT_TRUE(replay_checked({.recorded = &t, .second_uses = {}}, over, on).ok());
  EXPECT_EQ(on.hazard_count(), 1U);
  EXPECT_EQ(figures_of(t, "growth", {}).hazards, 0U);
}

TEST(replay, fails_on_a_refused_free_and_on_a_broken_invariant) {
  const trace t = trace_of(two_streams);
  sim_device on;
  early_allocator refuses{on};
  refuses.refuse_frees = true;
  EXPECT_EQ(replay_checked({.recorded = &t, .second_uses = {}}, refuses, on).code(), errc::double_free);
  EXPECT_EQ(replay_timed({.recorded = &t, .second_uses = {}}, refuses, on).code(), errc::double_free);
  early_allocator broken{on};
  broken.sound = false;
  EXPECT_EQ(replay_checked({.recorded = &t, .second_uses = {}}, broken, on).code(), errc::corrupt);
}

constexpr std::string_view rising =
    "1,00:00:00:000000,allocate,0xa0,1048576,0\n"
    "1,00:00:00:000000,allocate,0xb0,1048576,0\n"
    "1,00:00:00:000000,allocate,0xc0,1048576,0\n"
    "1,00:00:00:000000,free,0xa0,1048576,0\n";

TEST(replay, runs_tenants_half_a_trace_out_of_step) {
  const trace t = trace_of(rising);
  for (const std::string_view policy : {"growth,tenants=2", "multi_pool,pools=16MiB+16MiB"}) {
    const compare_figures figures = figures_of(t, policy, setup_of(64 * mib));
    EXPECT_EQ(figures.outcome.ops, 8U) << policy;
    EXPECT_EQ(figures.outcome.peak_live_bytes, 5 * mib) << policy << ": at no time have both all three";
    EXPECT_EQ(figures.hazards, 0U) << policy;
  }
  EXPECT_EQ(peak_live_of(t, 1), 3 * mib);
  EXPECT_EQ(peak_live_of(t, 2), 5 * mib);
}

TEST(replay, gives_each_pool_a_tenant) {
  const trace t = trace_of(rising);
  auto under_test = open_rig(setup_of(64 * mib).device, row_of("multi_pool,pools=16MiB+8MiB").config);
  ASSERT_TRUE(under_test.ok()) << under_test.why().message();
  ASSERT_TRUE(
      replay_timed({.recorded = &t, .second_uses = {}, .tenants = 2}, *under_test->memory, *under_test->gpu).ok());
  EXPECT_EQ(under_test->memory->stats(0)->peak_live_bytes, 3 * mib);
  EXPECT_EQ(under_test->memory->stats(1)->peak_live_bytes, 3 * mib);
}

TEST(replay, times_every_operation) {
  const trace t = trace_of(rising);
  const auto ns = measure_time(t, row_of("growth"), {});
  ASSERT_TRUE(ns.ok());
  ASSERT_TRUE(ns->has_value());
  EXPECT_GT(**ns, 0.0);
  EXPECT_FALSE(measure_time(t, row_of("growth"), setup_of(mib))->has_value()) << "nothing succeeded";
}

}  // namespace
}  // namespace gpumem::bench
