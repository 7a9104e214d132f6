#include "block_uses.hpp"

#include <gmock/gmock.h>

#include "log.hpp"
#include "ordered_heap.hpp"

namespace gpumem {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

/// A block of one stream, which a second one uses as well: its work is done after 1 ms.
class BlockUses : public ::testing::Test {
 protected:
  void SetUp() override {
    former_ = set_log_sink([this](std::string_view line) { said_ += std::string{line}; });
  }
  void TearDown() override { static_cast<void>(set_log_sink(former_)); }
  void use(block_index i, stream_ref s) {
    t_.device.enqueue(s, 1'000'000);
    uses_.make_room();
    uses_.add(i, t_.slot(s));
  }
  [[nodiscard]] std::uint32_t references(owner_id o) const { return t_.streams[o].references; }

  ordered_heap t_;
  block_uses uses_{t_.blocks, t_.streams, "0"};
  stream_ref first_ = t_.device.create_stream();
  stream_ref second_ = t_.device.create_stream();
  owner_id mine_ = t_.slot(first_);
  owner_id user_ = t_.slot(second_);
  block_index shared_ = t_.take(mine_);
  log_sink former_;
  std::string said_;
};

TEST_F(BlockUses, AreNotedOnceForEachStreamAndHoldItsSlot) {
  EXPECT_FALSE(uses_.any(shared_));
  use(shared_, second_);
  use(shared_, second_);
  EXPECT_TRUE(uses_.any(shared_));
  EXPECT_EQ(references(user_), 1U);
  std::vector<std::uint32_t> counted(t_.streams.slots().end());
  uses_.count_references(shared_, &counted);
  EXPECT_EQ(counted[user_], 1U);
  EXPECT_GT(uses_.metadata_bytes(), 0U);
}

TEST_F(BlockUses, KeepAFreedBlockBackUntilTheirFencesAreDone) {
  use(shared_, second_);
  uses_.free(shared_, mine_);
  t_.record_fences();
  EXPECT_THAT(uses_.waiting(), ElementsAre(shared_));
  EXPECT_EQ(t_.blocks.totals().fenced_bytes, 512U);
  EXPECT_EQ(t_.streams.fences().count(), 1U) << "before the block is published";
  uses_.poll();
  EXPECT_THAT(uses_.waiting(), ElementsAre(shared_)) << "the work is not done";
  t_.device.advance_by(2'000'000);
  uses_.poll();
  EXPECT_THAT(uses_.waiting(), IsEmpty());
  EXPECT_EQ(t_.blocks.totals().cached_bytes, 512U) << "free for its own stream";
  EXPECT_EQ(references(mine_) + references(user_), 0U);
}

TEST_F(BlockUses, AreAskedInTheOrderOfTheirFreesUntilSoManyWaitOn) {
  const stream_ref third = t_.device.create_stream();
  std::vector<block_index> used;
  for (const stream_ref user : {second_, third, second_}) {
    used.push_back(t_.take(mine_));
    use(used.back(), user);
    uses_.free(used.back(), mine_);
    t_.record_fences();
    if (user == second_) t_.device.advance_by(2'000'000);
    t_.device.enqueue(third, 5'000'000);
  }
  uses_.poll(0);
  EXPECT_EQ(uses_.waiting(), used);
  uses_.poll(1);
  EXPECT_THAT(uses_.waiting(), ElementsAre(used[1], used[2])) << "the second waits on, and the third is not asked for";
  EXPECT_EQ(uses_.largest_waiting(), 512U);
  uses_.poll(2);
  EXPECT_THAT(uses_.waiting(), ElementsAre(used[1]));
  t_.device.advance_by(20'000'000);
  uses_.poll(1);
  EXPECT_THAT(uses_.waiting(), IsEmpty());
  EXPECT_EQ(uses_.largest_waiting(), 0U);
}

TEST_F(BlockUses, LetABlockGoToEverybodyWhereItsOwnStreamIsKnownToBeDoneToo) {
  use(shared_, second_);
  uses_.free(shared_, mine_);
  const result<fence_index> own = t_.streams.cover(mine_);
  ASSERT_TRUE(own.ok());
  t_.let_time_pass();
  uses_.poll();
  EXPECT_EQ(t_.blocks.totals().idle_bytes, mib);
  t_.streams.fences().unref(*own);
}

TEST_F(BlockUses, ByTheStreamThatFreesItWaitForNothing) {
  use(shared_, second_);
  t_.blocks.at(shared_).owner = user_;
  --t_.streams[mine_].references;
  ++t_.streams[user_].references;
  uses_.free(shared_, user_);
  EXPECT_THAT(uses_.waiting(), IsEmpty());
  EXPECT_EQ(t_.streams.fences().count(), 0U);
  EXPECT_EQ(t_.blocks.totals().cached_bytes, 512U);
}

TEST_F(BlockUses, LeakABlockWithAFailedFenceAndLogIt) {
  use(shared_, second_);
  uses_.free(shared_, mine_);
  t_.record_fences();
  t_.device.fail_nth(device_call::query, 1);
  uses_.poll();
  EXPECT_THAT(uses_.waiting(), IsEmpty());
  EXPECT_EQ(t_.blocks.totals().leaked_bytes, 512U);
  EXPECT_EQ(references(mine_) + references(user_), 0U);
  EXPECT_THAT(said_, ::testing::HasSubstr("pool 0: 512 B at 0x10000000 leaked: "));
}

TEST_F(BlockUses, AreFencedLaterWhereACaptureForbidsItOrARecordFails) {
  for (const errc why : {errc::unsupported, errc::host_failure, errc::device_error}) {
    const block_index i = t_.take(mine_);
    use(i, second_);
    t_.device.fail_nth(device_call::record, 1, why);
    uses_.free(i, mine_);
    t_.record_fences();
    EXPECT_THAT(uses_.waiting(), ElementsAre(i));
    uses_.poll();
    uses_.poll();
    t_.record_fences();
    EXPECT_THAT(uses_.waiting(), ElementsAre(i)) << "another fence is recorded now";
    t_.device.advance_by(2'000'000);
    uses_.poll();
    EXPECT_THAT(uses_.waiting(), IsEmpty());
  }
}

TEST_F(BlockUses, GoToAStreamThatIsOrderedBehindAllOfThem) {
  device_waits third{t_.streams, t_.slot(t_.device.create_stream())};
  use(shared_, second_);
  uses_.free(shared_, mine_);
  EXPECT_FALSE(uses_.take_over(third, shared_));
  EXPECT_EQ(t_.make(third), 2U) << "behind its own stream and the user";
  EXPECT_TRUE(uses_.take_over(third, shared_));
  EXPECT_THAT(uses_.waiting(), IsEmpty());
  EXPECT_FALSE(t_.blocks.free_blocks().empty(third.waiter()));
  EXPECT_EQ(references(user_), 0U);
}

TEST_F(BlockUses, StayWhereAStreamCannotBeOrderedBehindThem) {
  device_waits third{t_.streams, t_.slot(t_.device.create_stream())};
  use(shared_, second_);
  t_.device.fail_nth(device_call::record, 1, errc::unsupported);
  uses_.free(shared_, mine_);
  t_.record_fences();
  uses_.poll();
  EXPECT_FALSE(uses_.take_over(third, shared_)) << "a fence is missing";
  EXPECT_FALSE(third.missing()) << "and no wait is made without it";
  t_.streams[mine_].represents = stream_slot::kind::graph;
  uses_.take_over_all(third, idle_owner);
  EXPECT_FALSE(third.missing()) << "no other stream may have a graph's memory";
  t_.streams[mine_].represents = stream_slot::kind::stream;
  EXPECT_THAT(uses_.waiting(), ElementsAre(shared_));
}

TEST_F(BlockUses, AreTakenOverByOwner) {
  device_waits third{t_.streams, t_.slot(t_.device.create_stream())};
  device_waits own{t_.streams, mine_};
  const block_index other = t_.take(user_);
  use(shared_, second_);
  use(other, first_);
  uses_.free(shared_, mine_);
  uses_.free(other, user_);
  uses_.take_over_all(own, mine_);
  EXPECT_EQ(t_.make(own), 1U) << "behind the user only";
  uses_.take_over_all(own, mine_);
  EXPECT_THAT(uses_.waiting(), ElementsAre(other));
  uses_.take_over_all(third, idle_owner);
  EXPECT_EQ(t_.make(third), 2U);
  uses_.take_over_all(third, idle_owner);
  EXPECT_THAT(uses_.waiting(), IsEmpty());
}

TEST_F(BlockUses, KnowTheLargestBlockThatWaits) {
  device_waits own{t_.streams, mine_};
  const block_index larger = t_.take(mine_, 2048);
  const block_index others = t_.take(user_, 1024);
  EXPECT_EQ(uses_.largest_waiting(), 0U);
  for (const block_index i : {shared_, larger}) use(i, second_);
  use(others, first_);
  uses_.free(shared_, mine_);
  EXPECT_EQ(uses_.largest_waiting(), 512U);
  uses_.free(larger, mine_);
  uses_.free(others, user_);
  EXPECT_EQ(uses_.largest_waiting(), 2048U);
  static_cast<void>(uses_.take_over(own, larger));
  t_.make(own);
  ASSERT_TRUE(uses_.take_over(own, larger));
  EXPECT_EQ(uses_.largest_waiting(), 1024U);
  t_.device.advance_by(4'000'000);
  uses_.poll();
  EXPECT_EQ(uses_.largest_waiting(), 0U);
}

TEST_F(BlockUses, HoldEveryFenceThatIsStillNeeded) {
  use(shared_, second_);
  t_.device.fail_nth(device_call::record, 1, errc::unsupported);
  uses_.free(shared_, mine_);
  t_.record_fences();
  uses_.poll();
  held_fences held{t_.streams};
  uses_.hold_fences(&held);
  EXPECT_EQ(held.all().size(), 2U) << "the free's, and the use's, which was missing";
}

}  // namespace
}  // namespace gpumem
