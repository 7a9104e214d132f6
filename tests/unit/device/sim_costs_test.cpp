// The cost table: every entry has a source, calls take its times, and the README prints it unchanged.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <set>
#include <sstream>
#include <string>

#include "gpumem/sim_device.hpp"
#include "page.hpp"

namespace gpumem {
namespace {

using ::testing::StartsWith;

call_cost cost_of(device_call call) { return sim_default_costs()[static_cast<std::size_t>(call)]; }

TEST(SimCosts, EveryCallHasANameACostAndASource) {
  std::set<std::string_view> names;
  for (std::size_t i = 0; i < device_call_kinds; ++i) {
    const auto call = static_cast<device_call>(i);
    EXPECT_TRUE(names.insert(to_string(call)).second) << to_string(call);
    EXPECT_NE(to_string(call), "unknown call");
    EXPECT_GT(cost_of(call).fixed_ns, 0U) << to_string(call);
    const std::string source{sim_cost_source(call)};
    EXPECT_THAT(source, ::testing::AnyOf(StartsWith("published"), StartsWith("derived"), StartsWith("assumed")));
    EXPECT_EQ(source.find('\n'), std::string::npos);
  }
  EXPECT_EQ(sim_cost_source(device_call::count_), "");
  EXPECT_EQ(to_string(device_call::count_), "unknown call");
}

TEST(SimCosts, MeetThePublishedFigures) {
  EXPECT_EQ(cost_of(device_call::reserve).fixed_ns, 1'400U);
  EXPECT_EQ(cost_of(device_call::create).fixed_ns, 19'000U);
  EXPECT_EQ(cost_of(device_call::map).fixed_ns, 1'400U);
  EXPECT_EQ(cost_of(device_call::set_access).fixed_ns, 66'900U);
  EXPECT_EQ(cost_of(device_call::unmap).fixed_ns, 37'900U);
  EXPECT_EQ(cost_of(device_call::destroy).fixed_ns, 34'500U);
  EXPECT_EQ(cost_of(device_call::release_range).fixed_ns, 1'000U);
  const call_cost alloc = cost_of(device_call::alloc);
  EXPECT_NEAR(static_cast<double>(alloc.fixed_ns + 63 * alloc.per_page_ns), 966'000.0, 500.0);  // 128 MB
  const call_cost access = cost_of(device_call::set_access);
  const double trace_ns =
      705.0 * static_cast<double>(access.fixed_ns) + (5'996.0 - 705.0) * static_cast<double>(access.per_page_ns);
  EXPECT_GT(trace_ns, 68e6);
  EXPECT_LT(trace_ns, 102e6);
}

TEST(SimCosts, EveryRowOfTheReadmeIsTheTables) {
  std::ifstream file{"src/device/README.md"};
  ASSERT_TRUE(file) << "src/device/README.md: not found; the test runs in the root of the source tree";
  std::stringstream readme;
  readme << file.rdbuf();
  std::string table = "| call | fixed ns | per further 2 MiB ns | source |\n|---|---|---|---|\n";
  for (std::size_t i = 0; i < device_call_kinds; ++i) {
    const auto call = static_cast<device_call>(i);
    std::ostringstream row;
    row << "| `" << to_string(call) << "` | " << cost_of(call).fixed_ns << " | " << cost_of(call).per_page_ns << " | "
        << sim_cost_source(call) << " |\n";
    table += row.str();
  }
  EXPECT_NE(readme.str().find(table + "\n"), std::string::npos) << "expected in src/device/README.md:\n" << table;
}

// Each call in this sequence of a segment, a range and a fence advances the clock by its entry.
TEST(SimCosts, CallsMoveTheClock) {
  sim_device device;
  std::uint64_t expected_ns = 0;
  const auto expect = [&](device_call call, std::uint64_t further_pages) {
    expected_ns += cost_of(call).fixed_ns + further_pages * cost_of(call).per_page_ns;
    EXPECT_EQ(device.now_ns(), expected_ns) << to_string(call);
    EXPECT_EQ(device.in_calls_ns(), expected_ns) << to_string(call);
  };
  const address segment = *device.alloc(8 * page);
  expect(device_call::alloc, 7);
  ASSERT_TRUE(device.free(segment));
  expect(device_call::free, 7);
  const address pinned = *device.alloc_host(page + 1);
  expect(device_call::alloc_host, 1);
  ASSERT_TRUE(device.free_host(pinned));
  expect(device_call::free_host, 1);
  const address range = *device.reserve(4 * page);
  expect(device_call::reserve, 3);
  const page_run run = *device.create(4 * page);
  expect(device_call::create, 3);
  ASSERT_TRUE(device.map(range, 4 * page, run));
  expect(device_call::map, 3);
  ASSERT_TRUE(device.set_access(range, 4 * page));
  expect(device_call::set_access, 3);
  ASSERT_TRUE(device.unmap(range, 4 * page));
  expect(device_call::unmap, 3);
  ASSERT_TRUE(device.destroy(run));
  expect(device_call::destroy, 3);
  ASSERT_TRUE(device.release_range(range, 4 * page));
  expect(device_call::release_range, 3);
  ASSERT_TRUE(device.memory());
  expect(device_call::memory, 0);
  const fence f = *device.record({});
  expect(device_call::record, 0);
  ASSERT_TRUE(*device.query(f));
  expect(device_call::query, 0);
  ASSERT_TRUE(device.wait_host(f));
  expect(device_call::wait_host, 0);
  ASSERT_TRUE(device.wait_stream({}, f));
  expect(device_call::wait_stream, 0);
  device.drop(f);
  ASSERT_TRUE(device.record_context());
  expect(device_call::record_context, 0);
  ASSERT_TRUE(device.stream_id({}));
  expect(device_call::stream_id, 0);
  ASSERT_TRUE(device.synchronize());
  expect(device_call::synchronize, 0);
}

TEST(SimCosts, RefusedCallCostsItsFixedPart) {
  sim_device device{{.capacity_bytes = page}};
  EXPECT_FALSE(device.alloc(64 * page));
  EXPECT_EQ(device.now_ns(), cost_of(device_call::alloc).fixed_ns);
}

TEST(SimCosts, TableCanBeReplaced) {
  cost_table costs{};
  costs[static_cast<std::size_t>(device_call::alloc)] = {.fixed_ns = 5, .per_page_ns = 3};
  sim_device device{{.costs = costs}};
  ASSERT_TRUE(device.alloc(4 * page));
  EXPECT_EQ(device.now_ns(), 14U);
}

}  // namespace
}  // namespace gpumem
