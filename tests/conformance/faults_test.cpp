/// A failing driver: memory behind a failed fence is never handed out again, and all counters still balance.
#include "setup.hpp"

namespace gpumem::conformance {
namespace {

constexpr std::size_t most = std::size_t{400} << 20;

class Faults : public program {
 protected:
  void SetUp() override {
    program::SetUp();
    if (!is_simulated()) GTEST_SKIP() << needs_simulation;
  }
  void fail_next(device_call call, unsigned times = 1) {
    for (unsigned n = 1; n <= times; ++n) sim().fail_nth(call, n, errc::device_error);
  }
};

TEST_P(Faults, ABlockIsFencedLaterIfItsFenceCannotBeRecorded) {
  const stream_ref a = device_->create_stream();
  const stream_ref b = device_->create_stream();
  auto* const p = static_cast<char*>(take(most, a));
  ASSERT_TRUE(allocator_->record_use(p, b).ok());
  device_->use(b, 10'000'000, p, most);
  fail_next(device_call::record);
  fail_next(device_call::record_context);
  give(p);
  // Another fence is recorded when memory is needed, and retried after a failure. Nothing is lost, and the referee
  // watches.
  EXPECT_EQ(stats().leaked_bytes, 0U);
  void* q = try_take(most, a);
  for (int attempts = 0; q == nullptr && attempts < 4; ++attempts) q = try_take(most, a);
  EXPECT_EQ(q, p);
  give(q);
  EXPECT_EQ(stats().leaked_bytes, 0U);
}

TEST_P(Faults, ABlockIsNotReusedIfItsFenceCannotBeQueried) {
  const stream_ref a = device_->create_stream();
  const stream_ref b = device_->create_stream();
  void* const p = take(most, a);
  ASSERT_TRUE(allocator_->record_use(p, b).ok());
  device_->use(b, 10'000'000, p, most);
  give(p);
  fail_next(device_call::query, 8);
  fail_next(device_call::wait_host, 8);
  fail_next(device_call::wait_stream, 8);
  void* const q = try_take(most, b);  // the referee checks the block if there is one
  if (q != nullptr) give(q);
}

TEST_P(Faults, MemoryOfAStreamWithFailedFencesWaitsForALaterFence) {
  const stream_ref a = device_->create_stream();
  const stream_ref b = device_->create_stream();
  void* const p = take(most, a);
  device_->use(a, 10'000'000, p, most);
  give(p);
  fail_next(device_call::record, 3);
  fail_next(device_call::record_context, 3);
  void* q = try_take(most, b);
  for (int attempts = 0; q == nullptr && attempts < 4; ++attempts) q = try_take(most, b);
  EXPECT_EQ(q, p) << "its fence was never recorded, so another may be";
  if (q != nullptr) give(q);
}

TEST_P(Faults, ASegmentThatTheDriverDoesNotTakeBackIsCounted) {
  if (GetParam().policy == "grab_all") GTEST_SKIP() << "grab_all gives nothing back";
  give(take(std::size_t{64} << 20));
  const std::uint64_t reserved = stats().reserved_bytes;
  fail_next(returning_call());
  const trim_result trimmed = *allocator_->trim(0);
  EXPECT_EQ(stats().reserved_bytes, reserved - trimmed.returned_bytes);
  EXPECT_EQ(stats().reserved_bytes, sim().used_bytes());
  // Pages that the driver fails to unmap stay mapped. Memory that it fails to free is in an unknown state.
  const bool pages = returning_call() == device_call::unmap;
  EXPECT_EQ(stats().leaked_bytes != 0, !pages) << stats().leaked_bytes;
}

TEST_P(Faults, OnlyARequestWithAnUnidentifiedStreamIsRefused) {
  if (GetParam().stream_ids != stream_id_mode::query) GTEST_SKIP() << "notify never asks";
  const stream_ref s = device_->create_stream();
  fail_next(device_call::stream_id);
  EXPECT_EQ(allocator_->try_allocate({.bytes = 512, .stream = s}).code(), errc::device_error);
  void* const p = take(512, s);
  const stream_ref other = device_->create_stream();  // the id of a known stream is not queried again
  fail_next(device_call::stream_id);
  EXPECT_EQ(allocator_->try_deallocate(p, {.stream = other}).code(), errc::device_error);
  EXPECT_EQ(stats().live_blocks, 1U);
  give(p);
}

TEST_P(Faults, AFailedAllocationGivesItsBudgetBack) {
  const std::uint64_t limit = stats().limit_bytes;
  for (int i = 0; i < 20; ++i) {
    const bool takes_ahead = i == 0 && GetParam().policy == "grab_all";
    fail_next(taking_call(), takes_ahead ? 2 : 1);
    EXPECT_EQ(try_take(most), nullptr);
  }
  void* const p = take(most);
  EXPECT_NE(p, nullptr) << "of " << limit;
  give(p);
}

INSTANTIATE_TEST_SUITE_P(Every, Faults, ::testing::ValuesIn(every_stream_setup()), name_of);

}  // namespace
}  // namespace gpumem::conformance
