// Reasons for a failed request: fragmentation over pool and device, pending work by name, other holders of memory.
#include "oom_diagnosis.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <sstream>

#include "cacheless_pool.hpp"
#include "segment_each.hpp"

namespace gpumem {
namespace {

using ::testing::HasSubstr;

pool_config limited(std::uint64_t limit_bytes) {
  pool_config config;
  config.limit_bytes = limit_bytes;
  config.free_wait_ns = 0;
  config.reuse = stream_reuse::poll;
  return config;
}

oom_report refusal(cacheless_pool& tested, std::uint64_t bytes, stream_ref s = {}) {
  oom_slot report;
  address at = 0;
  EXPECT_EQ(tested.allocate({.bytes = bytes, .stream = s}, bytes, &at, &report).code(), errc::out_of_memory);
  report->requested_bytes = bytes;
  return *report;
}

/// A block of 12 of 16 MiB comes and goes, and a piece of its segment is taken: 11 MiB are free in the pool and 4
/// outside it.
TEST(oom_diagnosis, of_pool_and_device_together_it_is_fragmentation) {
  for (const bool by_limit : {true, false}) {
    sim_device card{{.capacity_bytes = by_limit ? 80 * gib : 16 * mib}};
    pool_config config = limited(by_limit ? 16 * mib : 0);
    if (!by_limit) config.total_bytes = 16 * mib;
    cacheless_pool tested{card, config, std::make_unique<segment_each>(false)};
    const stream_ref s = card.create_stream();
    const address large = tested.take(12 * mib, s);
    ASSERT_NE(large, 0U);
    tested.give(large);
    const address kept = tested.take(mib, s);
    ASSERT_NE(kept, 0U);
    const oom_report report = refusal(tested, 12 * mib, s);
    EXPECT_EQ(report.cause, oom_cause::fragmentation);
    EXPECT_THAT(report.headline(), HasSubstr("1.00 MiB live and 11.00 MiB free in pieces of at most 11.00 MiB and 4.00 "
                                             "MiB outside the pool"));
    const oom_report more = refusal(tested, 16 * mib, s);
    EXPECT_EQ(more.cause, by_limit ? oom_cause::limit : oom_cause::device_full) << "15 MiB are free in all";
  }
}

/// Two neighbours were freed on another stream, whose work is pending. They merge when it is done.
TEST(oom_diagnosis, pending_neighbours_are_pending_work_of_their_stream) {
  sim_device card{{}};
  cacheless_pool tested{card, limited(16 * mib), std::make_unique<segment_each>(false)};
  const stream_ref one = card.create_stream();
  const stream_ref two = card.create_stream();
  const address whole = tested.take(16 * mib, one);
  tested.give(whole);
  const address left = tested.take(8 * mib, one);
  const address right = tested.take(8 * mib, one);
  ASSERT_TRUE(left != 0 && right != 0);
  for (const address at : {left, right}) {
    card.enqueue_use(two, 1'000'000'000, at, 8 * mib);
    ASSERT_TRUE(tested.record_use(at, two).ok());
  }
  tested.give(left);
  tested.give(right);
  const oom_report report = refusal(tested, 16 * mib, one);
  EXPECT_EQ(report.cause, oom_cause::pending_work);
  EXPECT_EQ(report.pending_bytes, 16 * mib);
  EXPECT_THAT(report.pending_on, testing::StartsWith("stream 0x"));
  EXPECT_EQ(
      report.pending_on, "stream " +
                             [&] {
                               std::ostringstream text;
                               text << two.handle;
                               return text.str();
                             }())
      << "it is the stream that uses the blocks";
  EXPECT_THAT(report.headline(), HasSubstr("16.00 MiB of what fits wait for stream 0x"));
  EXPECT_THAT(report.to_string(), HasSubstr("\npending_bytes: 16777216"));
}

/// A block that waits lies between free blocks of the request's own stream, and all three together have room. Another
/// one that waits lies apart, and beside a live block.
TEST(oom_diagnosis, pending_work_between_free_blocks_counts_with_them) {
  sim_device card{{}};
  cacheless_pool tested{card, limited(32 * mib), std::make_unique<segment_each>(false)};
  const stream_ref one = card.create_stream();
  const stream_ref two = card.create_stream();
  tested.give(tested.take(32 * mib, one));
  std::array<address, 8> blocks{};
  for (address& each : blocks) ASSERT_NE(each = tested.take(4 * mib, one), 0U);
  std::ranges::sort(blocks);
  for (const std::size_t k : {1U, 4U}) {
    card.enqueue_use(two, 1'000'000'000, blocks.at(k), 4 * mib);
    ASSERT_TRUE(tested.record_use(blocks.at(k), two).ok());
  }
  for (const std::size_t k : {1U, 3U, 4U, 5U}) tested.give(blocks.at(k));
  const oom_report report = refusal(tested, 12 * mib, one);
  EXPECT_EQ(report.cause, oom_cause::pending_work);
  EXPECT_EQ(report.pending_bytes, 4 * mib);
  EXPECT_EQ(refusal(tested, 16 * mib, one).cause, oom_cause::fragmentation) << "16 MiB are free, in two pieces";
  tested.give(blocks[0]);
  tested.give(blocks[2]);
  const oom_report whole = refusal(tested, 24 * mib, one);
  EXPECT_EQ(whole.cause, oom_cause::pending_work);
  EXPECT_EQ(whole.pending_bytes, 8 * mib) << "both, in one piece of six blocks";
}

TEST(oom_diagnosis, lists_the_other_processes_on_a_card) {
  ::setenv("GPUMEM_NVML", GPUMEM_TEST_NVML, 1);
  ::setenv("FAKENVML_CARDS", "2", 1);
  const std::string parent = std::to_string(::getppid());
  ::setenv("FAKENVML_PIDS", ("1=" + std::to_string(::getpid()) + ",1=" + parent).c_str(), 1);
  device_info card;
  card.uuid = "GPU-fake-1";
  const std::vector<memory_holder> others = other_holders(card);
  ASSERT_EQ(others.size(), 1U) << "this process is no other";
  EXPECT_EQ(others[0].pid, static_cast<std::uint32_t>(::getppid()));
  EXPECT_EQ(others[0].bytes, 256 * mib);
  EXPECT_NE(others[0].name, "");
  card.uuid = "GPU-fake-0";
  EXPECT_TRUE(other_holders(card).empty());
  card.uuid = "GPU-unknown";
  EXPECT_TRUE(other_holders(card).empty());
  card.uuid = "GPU-fake-1";
  card.simulated = true;
  EXPECT_TRUE(other_holders(card).empty());
}

}  // namespace
}  // namespace gpumem
