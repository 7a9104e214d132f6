/// Workloads have the invariants of loaded traces, are the same for a seed, and have the documented properties.
#include "workload.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "measure.hpp"
#include "schedule.hpp"

namespace gpumem::bench {
namespace {

trace made(const std::string& text, std::uint64_t seed = 1) {
  auto got = make_workload(text, seed);
  EXPECT_TRUE(got.ok()) << got.why().message();
  return *std::move(got);
}

class workload : public testing::TestWithParam<workload_entry> {};

TEST_P(workload, is_a_trace_whose_frees_follow_their_allocations) {
  const trace t = made(std::string{GetParam().name} + ",ops=8000,peak=64MiB");
  std::vector<std::uint64_t> live(t.slots);
  std::uint64_t before_ns = 0;
  for (const trace_op& op : t.ops) {
    ASSERT_LT(op.slot, t.slots);
    ASSERT_LT(op.stream, t.streams.size());
    ASSERT_GE(op.time_ns, before_ns);
    before_ns = op.time_ns;
    if (op.kind == op_kind::allocate) {
      ASSERT_EQ(live[op.slot], 0U);
      ASSERT_GT(op.bytes, 0U);
      live[op.slot] = op.bytes;
    } else {
      ASSERT_EQ(live[op.slot], op.bytes);
      live[op.slot] = 0;
    }
  }
  EXPECT_EQ(t.peak_live_bytes, peak_live_of(t, 1));
  EXPECT_GT(t.peak_live_bytes, 8U << 20) << "about what was asked for";
  EXPECT_LE(t.peak_live_bytes, 72U << 20);
  EXPECT_GE(t.ops.size(), 3000U);
  EXPECT_LE(t.ops.size(), 12'000U);
}

TEST_P(workload, is_the_same_for_a_seed) {
  const std::string text = std::string{GetParam().name} + ",ops=3000";
  const auto sizes = [](const trace& t) {
    std::vector<std::uint64_t> out;
    for (const trace_op& op : t.ops) out.push_back(op.bytes * 2 + (op.kind == op_kind::free ? 1U : 0U));
    return out;
  };
  EXPECT_EQ(sizes(made(text, 7)), sizes(made(text, 7)));
  EXPECT_EQ(sizes(made(text, 7)), sizes(made(text + ",seed=7", 8)));
  if (GetParam().name != "robson") {
    EXPECT_NE(sizes(made(text, 7)), sizes(made(text, 8)));
  }
}

TEST_P(workload, replays_without_a_hazard) {
  const trace t = made(std::string{GetParam().name} + ",ops=3000");
  for (const char* text : {"growth", "caching", "grab_all"}) {
    const auto row = parse_policy_row(text, {}, "");
    const auto got = measure_checked(t, *row, {});
    ASSERT_TRUE(got.ok()) << got.why().message();
    EXPECT_EQ(got->hazards, 0U);
    EXPECT_FALSE(got->outcome.oom);
    EXPECT_EQ(got->outcome.peak_live_bytes, t.peak_live_bytes);
  }
}

INSTANTIATE_TEST_SUITE_P(every, workload, testing::ValuesIn(known_workloads()),
                         [](const auto& instance) { return std::string{instance.param.name}; });

// M (log2(n) / 2 + 1) - n + 1 units for M live and blocks of up to n: the bound for every allocator that moves nothing.
TEST(workload, robson_reaches_his_bound) {
  const trace t = made("robson,ops=16384");
  constexpr double units = 4096;
  constexpr double largest = 512;
  const auto row = parse_policy_row("growth", {}, "");
  const auto got = measure_checked(t, *row, {});
  ASSERT_TRUE(got.ok()) << got.why().message();
  const double unit_bytes = static_cast<double>(t.peak_live_bytes) / units;
  EXPECT_GE(static_cast<double>(got->peak_reserved_bytes) / unit_bytes, units * (9.0 / 2 + 1) - largest + 1);
}

TEST(workload, hands_blocks_from_stream_to_stream) {
  const trace t = made("pipeline,ops=2000,streams=3");
  EXPECT_EQ(t.streams.size(), 3U);
  std::vector<std::uint16_t> from(t.slots);
  std::size_t handed = 0;
  for (const trace_op& op : t.ops) {
    if (op.kind == op_kind::allocate) from[op.slot] = op.stream;
    handed += op.kind == op_kind::free && from[op.slot] != op.stream ? 1U : 0U;
  }
  EXPECT_GT(handed, 300U);
}

TEST(workload, refuses_what_it_does_not_know) {
  const auto expect_refused = [](const std::string& text, const std::string& reason) {
    const auto got = make_workload(text, 1);
    EXPECT_EQ(got.code(), errc::bad_setting) << text;
    EXPECT_THAT(got.why().message(),
                testing::AllOf(testing::HasSubstr("workload '" + text), testing::HasSubstr(reason)));
  };
  expect_refused("nonsense", "expected one of random, training");
  expect_refused("training,ops=0", "ops=0: expected a whole number from 1");
  expect_refused("training,ops=many", "ops=many: expected a whole number");
  expect_refused("training,peak=1KiB", "peak=1KiB: expected 1MiB to 1TiB");
  expect_refused("training,peak=nan", "peak");
  expect_refused("training,layers=3", "'layers' is no option of a workload");
  expect_refused("tenants,tenants=17", "tenants=17");
  expect_refused("random,like=nothing", "like: ");
  expect_refused("training,ops=5,ops=6", "ops is named twice");
  expect_refused("robson,streams=4", "streams is an option of pipeline alone");
  expect_refused("training,tenants=2", "tenants is an option of tenants alone");
  expect_refused("serving,like=moe", "like is an option of random alone");
  expect_refused("", "expected one of");
}

}  // namespace
}  // namespace gpumem::bench
