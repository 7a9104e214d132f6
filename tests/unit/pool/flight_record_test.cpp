// Which events of its slow path an arena records.
#include "flight_record.hpp"

#include <gtest/gtest.h>

#include "cacheless_pool.hpp"
#include "segment_each.hpp"

namespace gpumem {
namespace {

std::vector<slow_event> kinds_of(cacheless_pool& tested) {
  std::vector<slow_event> out;
  for (const flight_event& each : (*tested).flight()) out.push_back(each.kind);
  return out;
}

TEST(FlightRecord, KeepsTheLatestThousandInOrder) {
  flight_record record;
  for (std::uint64_t i = 0; i < 2500; ++i) record.note(slow_event::segment_taken, i, 0);
  EXPECT_EQ(record.noted(), 2500U);
  const std::vector<flight_event> all = record.latest();
  ASSERT_EQ(all.size(), flight_record::capacity);
  for (std::size_t i = 0; i < all.size(); ++i) ASSERT_EQ(all[i].amount, 1500 + i);
  const std::vector<flight_event> few = record.latest(3);
  ASSERT_EQ(few.size(), 3U);
  EXPECT_EQ(few.front().amount, 2497U);
  EXPECT_TRUE(flight_record{}.latest().empty());
}

TEST(FlightRecord, PrintsTimeEventAndBytes) {
  const flight_event grown{.time_ns = 1'000'000'000, .amount = 2 * mib, .reserved_bytes = 4 * mib};
  EXPECT_EQ(to_string(grown, 2'250'000'000), "-1.250000 s segment_taken 2097152 reserved 4194304");
  const flight_event waited{.time_ns = 2'249'000'000, .amount = 7, .kind = slow_event::host_waited};
  EXPECT_EQ(to_string(waited, 2'250'000'000), "-0.001000 s host_waited 7 ns reserved 0");
  EXPECT_EQ(to_string(waited, 0), "-0.000000 s host_waited 7 ns reserved 0") << "a later event";
}

TEST(FlightRecord, HasEventsOfTheSlowPathAndNoServedRequests) {
  sim_device device{sim_config{}};
  pool_config config;
  config.reuse = stream_reuse::device;
  config.limit_bytes = config.total_bytes = 64 * mib;
  cacheless_pool tested{device, config, std::make_unique<segment_each>()};
  const address block = tested.take(16 * mib);
  ASSERT_NE(block, 0U);
  tested.give(block);
  for (int i = 0; i < 100; ++i) tested.give(tested.take(16 * mib));
  EXPECT_EQ(kinds_of(tested), std::vector{slow_event::segment_taken});
  EXPECT_EQ(tested.take(80 * mib), 0U) << "more than the limit: refused before anything is asked";
  EXPECT_EQ(tested.trim(UINT64_MAX).returned_bytes, 16 * mib);
  EXPECT_EQ(kinds_of(tested), (std::vector{slow_event::segment_taken, slow_event::request_refused,
                                           slow_event::host_waited, slow_event::segment_returned}));
  const address held = tested.take(48 * mib);
  EXPECT_EQ(tested.take(32 * mib), 0U);
  const std::vector<flight_event> events = (*tested).flight();
  const flight_event& by_limit = events.at(events.size() - 2);
  EXPECT_EQ(by_limit.kind, slow_event::refused_by_limit);
  EXPECT_EQ(by_limit.amount, 32 * mib);
  EXPECT_EQ(by_limit.reserved_bytes, 48 * mib);
  EXPECT_EQ(events.back().kind, slow_event::request_refused);
  tested.give(held);
}

TEST(FlightRecord, HasRefusalsOfTheDevice) {
  sim_config full;
  full.capacity_bytes = gib;
  full.foreign_bytes = gib - 64 * mib;
  sim_device device{full};
  pool_config config;
  config.reuse = stream_reuse::device;
  config.limit_bytes = config.total_bytes = gib;
  cacheless_pool tested{device, config, std::make_unique<segment_each>()};
  EXPECT_EQ(tested.take(512 * mib), 0U);
  const std::vector<slow_event> kinds = kinds_of(tested);
  ASSERT_FALSE(kinds.empty());
  EXPECT_EQ(kinds.front(), slow_event::refused_by_device);
}

}  // namespace
}  // namespace gpumem
