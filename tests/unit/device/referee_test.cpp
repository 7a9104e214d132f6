// The referee reports planted hazards, and reports nothing if the same steps are ordered.
#include <gtest/gtest.h>

#include <string>

#include "gpumem/sim_device.hpp"
#include "page.hpp"

namespace gpumem {
namespace {

constexpr std::uint64_t lag_ns = 1'000'000;

class Referee : public ::testing::Test {
 protected:
  sim_device device;
  stream_ref a = device.create_stream();
  stream_ref b = device.create_stream();
  stream_ref c = device.create_stream();
  address x = *device.alloc(16 * mib);

  /// A block handed to `s`, used there and given back.
  void use_and_give_back(stream_ref s, address at, std::uint64_t bytes) {
    device.handed_out(at, bytes, s);
    device.enqueue_use(s, lag_ns, at, bytes);
    device.given_back(at);
  }
  address mapped_pages(std::uint64_t bytes) {
    const address range = *device.reserve(bytes);
    EXPECT_TRUE(device.map(range, bytes, *device.create(bytes)));
    EXPECT_TRUE(device.set_access(range, bytes));
    return range;
  }
};

// --- early reuse ---------------------------------------------------------------------------------------------

TEST_F(Referee, ReportsAPlantedEarlyReuse) {
  use_and_give_back(a, x, 4096);
  device.handed_out(x, 4096, b);
  ASSERT_EQ(device.hazard_count(), 1U);
  const hazard h = device.hazards().front();
  EXPECT_EQ(h.kind, hazard_kind::early_reuse);
  EXPECT_EQ(h.at, x);
  EXPECT_EQ(h.bytes, 4096U);
  EXPECT_EQ(h.user, a);
  EXPECT_EQ(h.receiver, b);
  EXPECT_EQ(h.at_ns, device.now_ns());
  EXPECT_NE(h.to_string().find("early_reuse"), std::string::npos) << h.to_string();
  EXPECT_NE(h.to_string().find("4096 bytes at 0x200000000000"), std::string::npos) << h.to_string();
}

TEST_F(Referee, ThatTheWorkHappensToBeDoneIsNoExcuse) {
  use_and_give_back(a, x, 4096);
  device.advance_by(1'000 * lag_ns);
  device.handed_out(x, 4096, b);
  EXPECT_EQ(device.hazard_count(), 1U);
}

TEST_F(Referee, TheSameStreamMayReuseAtOnce) {
  use_and_give_back(a, x, 4096);
  device.handed_out(x, 4096, a);
  EXPECT_EQ(device.hazard_count(), 0U);
}

TEST_F(Referee, WaitStreamOrders) {
  use_and_give_back(a, x, 4096);
  ASSERT_TRUE(device.wait_stream(b, *device.record(a)));
  device.handed_out(x, 4096, b);
  EXPECT_EQ(device.hazard_count(), 0U);
  device.given_back(x);
  device.handed_out(x, 4096, c);  // c waited for nothing
  EXPECT_EQ(device.hazard_count(), 1U);
}

TEST_F(Referee, FenceRecordedBeforeTheUseOrdersNothing) {
  const fence early = *device.record(a);
  use_and_give_back(a, x, 4096);
  ASSERT_TRUE(device.wait_stream(b, early));
  ASSERT_TRUE(device.wait_host(early));
  device.handed_out(x, 4096, b);
  EXPECT_EQ(device.hazard_count(), 1U);
}

TEST_F(Referee, QueryOrdersWhenItSaysTrue) {
  use_and_give_back(a, x, 4096);
  const fence f = *device.record(a);
  ASSERT_FALSE(*device.query(f));
  device.advance_by(2 * lag_ns);
  ASSERT_TRUE(*device.query(f));
  device.handed_out(x, 4096, b);
  EXPECT_EQ(device.hazard_count(), 0U);
}

TEST_F(Referee, QueryThatSaysFalseOrdersNothing) {
  use_and_give_back(a, x, 4096);
  ASSERT_FALSE(*device.query(*device.record(a)));
  device.advance_by(2 * lag_ns);
  device.handed_out(x, 4096, b);
  EXPECT_EQ(device.hazard_count(), 1U);
}

TEST_F(Referee, WaitHostOrders) {
  use_and_give_back(a, x, 4096);
  ASSERT_TRUE(device.wait_host(*device.record(a)));
  device.handed_out(x, 4096, b);
  EXPECT_EQ(device.hazard_count(), 0U);
}

TEST_F(Referee, ContextFenceOrdersEveryStream) {
  use_and_give_back(a, x, 4096);
  use_and_give_back(b, x + 4096, 4096);
  ASSERT_TRUE(device.wait_stream(c, *device.record_context()));
  device.handed_out(x, 8192, c);
  EXPECT_EQ(device.hazard_count(), 0U);
}

TEST_F(Referee, SynchronizeOrdersEveryStream) {
  use_and_give_back(a, x, 4096);
  ASSERT_TRUE(device.synchronize());
  device.handed_out(x, 4096, b);
  EXPECT_EQ(device.hazard_count(), 0U);
}

TEST_F(Referee, FreeOfAnySegmentOrdersEveryStream) {
  const address other = *device.alloc(page);
  use_and_give_back(a, x, 4096);
  ASSERT_TRUE(device.free(other));
  device.handed_out(x, 4096, b);
  EXPECT_EQ(device.hazard_count(), 0U);
}

TEST_F(Referee, BlockThatWasNeverUsedStillBelongsToItsStream) {
  device.handed_out(x, 4096, a);
  device.given_back(x);
  device.handed_out(x, 4096, b);
  EXPECT_EQ(device.hazard_count(), 1U);
}

TEST_F(Referee, FreshMemoryIsAnybodys) {
  device.handed_out(x, 4096, a);
  device.handed_out(x + 4096, 4096, b);
  EXPECT_EQ(device.hazard_count(), 0U);
}

// --- chains --------------------------------------------------------------------------------------------------

TEST_F(Referee, OrderPassesThroughThreeStreams) {
  use_and_give_back(a, x, 4096);
  ASSERT_TRUE(device.wait_stream(b, *device.record(a)));
  ASSERT_TRUE(device.wait_stream(c, *device.record(b)));
  device.handed_out(x, 4096, c);
  EXPECT_EQ(device.hazard_count(), 0U);
}

TEST_F(Referee, ChainWithALinkTakenTooEarlyIsNone) {
  use_and_give_back(a, x, 4096);
  const fence behind_b = *device.record(b);  // before b waits for a
  ASSERT_TRUE(device.wait_stream(b, *device.record(a)));
  ASSERT_TRUE(device.wait_stream(c, behind_b));
  device.handed_out(x, 4096, c);
  EXPECT_EQ(device.hazard_count(), 1U);
}

TEST_F(Referee, HostThatSawTheEndOfAChainKnowsAllOfIt) {
  use_and_give_back(a, x, 4096);
  ASSERT_TRUE(device.wait_stream(b, *device.record(a)));
  ASSERT_TRUE(device.wait_host(*device.record(b)));
  device.handed_out(x, 4096, c);
  EXPECT_EQ(device.hazard_count(), 0U);
}

TEST_F(Referee, AStreamOrderedBehindTheReceiverIsOrderedBehindEarlierUsers) {
  use_and_give_back(a, x, 4096);
  ASSERT_TRUE(device.wait_stream(b, *device.record(a)));
  use_and_give_back(b, x, 4096);
  ASSERT_TRUE(device.wait_stream(c, *device.record(b)));
  device.handed_out(x, 4096, c);
  EXPECT_EQ(device.hazard_count(), 0U);
}

TEST_F(Referee, SecondUserMustBeWaitedForToo) {
  device.handed_out(x, 4096, a);
  device.enqueue_use(a, lag_ns, x, 4096);
  device.enqueue_use(b, lag_ns, x + 1024, 1024);
  device.given_back(x);
  ASSERT_TRUE(device.wait_host(*device.record(a)));
  device.handed_out(x, 512, c);  // b did not use these
  EXPECT_EQ(device.hazard_count(), 0U);
  device.handed_out(x + 512, 2048, c);
  ASSERT_EQ(device.hazard_count(), 1U);
  EXPECT_EQ(device.hazards().front().user, b);
  EXPECT_EQ(device.hazards().front().at, x + 1024);
  EXPECT_EQ(device.hazards().front().bytes, 1024U);
}

TEST_F(Referee, EveryOffenderIsReportedOnce) {
  device.handed_out(x, 4096, a);
  device.enqueue_use(a, lag_ns, x, 4096);
  device.enqueue_use(b, lag_ns, x, 1024);
  device.enqueue_use(b, lag_ns, x + 3072, 1024);
  device.enqueue_use(b, lag_ns, x, 4096);
  device.given_back(x);
  device.handed_out(x, 4096, c);
  ASSERT_EQ(device.hazard_count(), 2U);
  EXPECT_EQ(device.hazards()[0].user, a);
  EXPECT_EQ(device.hazards()[1].user, b);
  EXPECT_EQ(device.hazards()[1].bytes, 4096U);
}

TEST_F(Referee, BlocksMayBeSplitAndJoined) {
  use_and_give_back(a, x, 1024);
  use_and_give_back(b, x + 1024, 1024);
  ASSERT_TRUE(device.wait_stream(c, *device.record(a)));
  device.handed_out(x, 512, c);
  device.handed_out(x + 512, 512, c);
  EXPECT_EQ(device.hazard_count(), 0U);
  device.given_back(x + 512);
  device.handed_out(x + 512, 1024, c);  // overlaps bytes that b used
  ASSERT_EQ(device.hazard_count(), 1U);
  EXPECT_EQ(device.hazards().front().at, x + 1024);
  EXPECT_EQ(device.hazards().front().bytes, 512U);
}

// --- streams that end ----------------------------------------------------------------------------------------

TEST_F(Referee, StreamOnAReusedHandleInheritsNothing) {
  use_and_give_back(a, x, 4096);
  ASSERT_TRUE(device.destroy_stream(a));
  const stream_ref d = device.create_stream();
  ASSERT_EQ(d, a);
  device.handed_out(x, 4096, d);
  ASSERT_EQ(device.hazard_count(), 1U);
  EXPECT_EQ(device.hazards().front().user, a);
}

TEST_F(Referee, ContextFenceCoversADestroyedStream) {
  use_and_give_back(a, x, 4096);
  ASSERT_TRUE(device.destroy_stream(a));
  const stream_ref d = device.create_stream();
  ASSERT_TRUE(device.wait_host(*device.record_context()));
  device.handed_out(x, 4096, d);
  EXPECT_EQ(device.hazard_count(), 0U);
}

TEST_F(Referee, StreamAfterAFinishedOneStartsWithoutItsKnowledge) {
  use_and_give_back(b, x, 4096);
  ASSERT_TRUE(device.wait_host(*device.record(a)));
  ASSERT_TRUE(device.wait_stream(a, *device.record(b)));
  ASSERT_TRUE(device.destroy_stream(a));
  const stream_ref d = device.create_stream();
  device.handed_out(x, 4096, d);
  EXPECT_EQ(device.hazard_count(), 1U);
}

TEST_F(Referee, HandingOutToADestroyedStreamNeedsTheHostToKnow) {
  ASSERT_TRUE(device.destroy_stream(b));
  use_and_give_back(a, x, 4096);
  device.handed_out(x, 4096, b);
  EXPECT_EQ(device.hazard_count(), 1U);
  device.given_back(x);
  ASSERT_TRUE(device.synchronize());
  device.handed_out(x, 4096, b);
  EXPECT_EQ(device.hazard_count(), 1U);
}

// --- overlap -------------------------------------------------------------------------------------------------

TEST_F(Referee, ReportsOverlap) {
  device.handed_out(x + 1024, 1024, a);
  device.handed_out(x, 1024, a);
  device.handed_out(x + 2048, 1024, a);
  EXPECT_EQ(device.hazard_count(), 0U);
  device.handed_out(x + 512, 1024, a);
  ASSERT_EQ(device.hazard_count(), 2U);
  EXPECT_EQ(device.hazards()[0].kind, hazard_kind::overlap);
  EXPECT_EQ(device.hazards()[0].at, x + 512);
  EXPECT_EQ(device.hazards()[0].bytes, 512U);
  EXPECT_EQ(device.hazards()[1].at, x + 1024);
  EXPECT_EQ(device.hazards()[1].bytes, 512U);
  EXPECT_EQ(device.hazards()[1].user, a);
}

TEST_F(Referee, GivenBackEndsTheHandingOut) {
  device.handed_out(x, 1024, a);
  device.given_back(x);
  device.given_back(x);  // no block is there
  device.handed_out(x + 512, 1024, a);
  EXPECT_EQ(device.hazard_count(), 0U);
}

// --- not mapped ----------------------------------------------------------------------------------------------

TEST_F(Referee, ReportsBytesWithNothingBehindThem) {
  device.handed_out(x + 16 * mib - 512, 1024, a);  // half of it beyond the segment
  ASSERT_EQ(device.hazard_count(), 1U);
  EXPECT_EQ(device.hazards().front().kind, hazard_kind::use_after_free);
  device.enqueue_use(a, lag_ns, 4096, 4096);
  EXPECT_EQ(device.hazard_count(), 2U);
  device.handed_out(UINT64_MAX - 10, 100, a);
  EXPECT_EQ(device.hazard_count(), 3U);
}

TEST_F(Referee, MappingsCountOnceAccessible) {
  const address range = *device.reserve(2 * page);
  ASSERT_TRUE(device.map(range, page, *device.create(page)));
  ASSERT_TRUE(device.map(range + page, page, *device.create(page)));
  device.enqueue_use(a, lag_ns, range, 512);
  EXPECT_EQ(device.hazard_count(), 1U);
  ASSERT_TRUE(device.set_access(range, 2 * page));
  device.enqueue_use(a, lag_ns, range + page - 512, 1024);  // across two mappings
  EXPECT_EQ(device.hazard_count(), 1U);
}

TEST_F(Referee, PinnedMemoryIsBacked) {
  const address pinned = *device.alloc_host(4096);
  device.handed_out(pinned, 4096, a);
  EXPECT_EQ(device.hazard_count(), 0U);
}

TEST_F(Referee, FreeForgetsTheUsesOfItsRange) {
  const address segment = *device.alloc(page);
  use_and_give_back(a, segment, 4096);
  ASSERT_TRUE(device.free(segment));
  ASSERT_EQ(*device.alloc(page), segment);
  device.handed_out(segment, 4096, b);
  EXPECT_EQ(device.hazard_count(), 0U);
}

TEST_F(Referee, FreeUnderALiveBlockIsAHazard) {
  const address segment = *device.alloc(page);
  device.handed_out(segment + 512, 512, a);
  ASSERT_TRUE(device.free(segment));
  ASSERT_EQ(device.hazard_count(), 1U);
  EXPECT_EQ(device.hazards().front().kind, hazard_kind::use_after_free);
  EXPECT_EQ(device.hazards().front().at, segment + 512);
  EXPECT_EQ(device.hazards().front().user, a);
}

TEST_F(Referee, UnmapDoesNotWait) {
  const address range = mapped_pages(page);
  use_and_give_back(a, range + 512, 512);
  device.advance_by(10 * lag_ns);
  ASSERT_TRUE(device.unmap(range, page));
  ASSERT_EQ(device.hazard_count(), 1U);
  EXPECT_EQ(device.hazards().front().kind, hazard_kind::use_after_free);
  EXPECT_EQ(device.hazards().front().user, a);
  EXPECT_EQ(device.hazards().front().at, range + 512);
}

TEST_F(Referee, UnmapAfterTheHostSawTheWorkDoneIsFine) {
  const address range = mapped_pages(page);
  use_and_give_back(a, range, 512);
  ASSERT_TRUE(device.wait_host(*device.record(a)));
  ASSERT_TRUE(device.unmap(range, page));
  EXPECT_EQ(device.hazard_count(), 0U);
}

TEST_F(Referee, UnmapOfOtherPagesIsFine) {
  const address range = *device.reserve(2 * page);
  for (const address at : {range, range + page}) ASSERT_TRUE(device.map(at, page, *device.create(page)));
  ASSERT_TRUE(device.set_access(range, 2 * page));
  use_and_give_back(a, range, 512);
  ASSERT_TRUE(device.unmap(range + page, page));
  EXPECT_EQ(device.hazard_count(), 0U);
}

/// A page that `a` has used, and that is mapped at the second of two places as well.
struct MappedTwice : Referee {
  address range = *device.reserve(2 * page);
  MappedTwice() {
    const page_run run = *device.create(page);
    EXPECT_TRUE(device.map(range, page, run));
    EXPECT_TRUE(device.set_access(range, page));
    use_and_give_back(a, range + 512, 512);
    EXPECT_TRUE(device.map(range + page, page, run));
    EXPECT_TRUE(device.set_access(range + page, page));
  }
};

TEST_F(MappedTwice, MemoryBringsItsUsesAlong) {
  device.handed_out(range + page, page, a);
  EXPECT_EQ(device.hazard_count(), 0U) << "the order of its stream protects it";
  device.given_back(range + page);
  device.handed_out(range + page, page, b);
  ASSERT_EQ(device.hazard_count(), 1U);
  EXPECT_EQ(device.hazards().front().kind, hazard_kind::early_reuse);
  EXPECT_EQ(device.hazards().front().user, a);
}

TEST_F(MappedTwice, AnotherStreamIsNotOrderedBehindTheseUses) {
  device.handed_out(range + page, page, b);
  ASSERT_EQ(device.hazard_count(), 1U);
  EXPECT_EQ(device.hazards().front().kind, hazard_kind::early_reuse);
  EXPECT_EQ(device.hazards().front().at, range + page + 512);
}

TEST_F(MappedTwice, EachPlaceIsUnmappedOnceTheUsesThereAreDone) {
  ASSERT_TRUE(device.unmap(range + page, page));
  EXPECT_EQ(device.hazard_count(), 0U) << "the uses were at the first place";
  ASSERT_TRUE(device.unmap(range, page));
  ASSERT_EQ(device.hazard_count(), 1U);
  EXPECT_EQ(device.hazards().front().kind, hazard_kind::use_after_free);
}

// --- bookkeeping ---------------------------------------------------------------------------------------------

TEST_F(Referee, CountsAllAndKeepsTheFirstHundred) {
  device.handed_out(x, 512, a);
  for (int i = 0; i < 150; ++i) device.handed_out(x, 512, a);
  EXPECT_EQ(device.hazard_count(), 150U);
  EXPECT_EQ(device.hazards().size(), 100U);
}

TEST_F(Referee, ZeroBytesAreNothing) {
  device.handed_out(x, 0, a);
  device.enqueue_use(a, lag_ns, 1, 0);
  device.handed_out(x, 512, b);
  EXPECT_EQ(device.hazard_count(), 0U);
}

TEST(RefereeOff, SeesNothingButTimePasses) {
  sim_device device{{.costs = {}, .referee = false}};
  const stream_ref a = device.create_stream();
  device.handed_out(0, 512, a);
  device.handed_out(0, 512, {});
  device.enqueue_use(a, lag_ns, 0, 512);
  device.given_back(0);
  EXPECT_EQ(device.hazard_count(), 0U);
  EXPECT_TRUE(device.hazards().empty());
  ASSERT_TRUE(device.synchronize());
  EXPECT_EQ(device.now_ns(), lag_ns);
}

TEST(HazardNames, AreThoseOfTheEnumeration) {
  EXPECT_EQ(to_string(hazard_kind::early_reuse), "early_reuse");
  EXPECT_EQ(to_string(hazard_kind::overlap), "overlap");
  EXPECT_EQ(to_string(hazard_kind::use_after_free), "use_after_free");
}

}  // namespace
}  // namespace gpumem
