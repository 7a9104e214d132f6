/// The cause of a refused request, and the steps tried before it.
#include <gmock/gmock.h>

#include "setup.hpp"

namespace gpumem::conformance {
namespace {

using ::testing::HasSubstr;

constexpr std::size_t mebibyte = std::size_t{1} << 20;

class OutOfMemory : public program {
 protected:
  oom_report refusal(std::size_t bytes, stream_ref s = {}, int pool = 0) {
    oom_report report;
    EXPECT_EQ(try_take(bytes, s, pool, &report), nullptr);
    EXPECT_EQ(report.pool, allocator_->devices()[static_cast<std::size_t>(pool)].name);
    EXPECT_EQ(report.requested_bytes, bytes);
    return report;
  }
};

TEST_P(OutOfMemory, NamesTheLimit) {
  for (int pool = 0; pool < pools(); ++pool) {
    void* const held = take(mebibyte, {}, pool);
    const oom_report report = refusal(static_cast<std::size_t>(stats(pool).limit_bytes), {}, pool);
    // Without a limit the device's capacity is the bound.
    const bool limited = stats(pool).limit_bytes < device_bytes;
    EXPECT_EQ(report.cause, limited ? oom_cause::limit : oom_cause::device_full) << report.headline();
    EXPECT_EQ(report.pool_statistics.live_bytes, mebibyte);
    EXPECT_EQ(report.device_total_bytes, device_bytes);
    give(held);
  }
}

TEST_P(OutOfMemory, NamesTheDeviceThatIsFull) {
  if (!is_simulated()) GTEST_SKIP() << needs_simulation;
  sim().set_foreign_bytes(device_bytes - 20 * mebibyte);
  const oom_report report = refusal(64 * mebibyte);
  EXPECT_EQ(report.cause, oom_cause::device_full) << report.headline();
  EXPECT_EQ(report.device_free_bytes, sim().memory()->free_bytes);
  EXPECT_LE(report.device_free_bytes, 20 * mebibyte);
  sim().set_foreign_bytes(0);
  give(take(64 * mebibyte));
}

TEST_P(OutOfMemory, NamesFragmentation) {
  // Free whole pages are not fragmented under expandable, which moves pages; parts of pages are.
  std::vector<void*> all = fill(GetParam().policy == "expandable" ? mebibyte : 2 * mebibyte);
  std::vector<void*> kept;
  for (std::size_t i = 0; i < all.size(); ++i) {
    if (i % 2 == 0) {
      kept.push_back(all[i]);
    } else {
      give(all[i]);
    }
  }
  if (GetParam().policy == "grab_all") {  // with other policies blocks of separate segments can never join
    EXPECT_LT(stats().largest_free_bytes, 8 * mebibyte);
  }
  const oom_report report = refusal(24 * mebibyte);
  EXPECT_EQ(report.cause, oom_cause::fragmentation) << report.headline();
  EXPECT_GE(report.pool_statistics.reserved_bytes - report.pool_statistics.live_bytes, 24 * mebibyte);
  EXPECT_LT(report.pool_statistics.largest_free_bytes, 24 * mebibyte);
  give_all(kept);
}

TEST_P(OutOfMemory, NamesTheDriversError) {
  if (!is_simulated()) GTEST_SKIP() << needs_simulation;
  sim().fail_nth(taking_call(), 1, errc::device_error);
  if (GetParam().policy == "grab_all") sim().fail_nth(device_call::alloc, 2, errc::device_error);
  const oom_report report = refusal(mebibyte);
  EXPECT_EQ(report.cause, oom_cause::driver_error) << report.headline();
  EXPECT_THAT(report.driver_message,
              ::testing::AnyOf(::testing::HasSubstr("injected"), ::testing::HasSubstr("cuMemAlloc"),
                               ::testing::HasSubstr("cuMemCreate")));
  EXPECT_EQ(stats().reserved_bytes, 0U) << "the budget was returned";
  give(take(mebibyte));
}

TEST_P(OutOfMemory, HasRequestCauseAndRemedy) {
  const oom_report report = refusal(2 * static_cast<std::size_t>(stats().limit_bytes));
  EXPECT_EQ(report.headline().find('\n'), std::string::npos);
  EXPECT_THAT(report.headline(), HasSubstr(report.pool));
  EXPECT_THAT(report.headline(), HasSubstr(report.policy));
  EXPECT_EQ(report.to_string().rfind(report.headline(), 0), 0U) << "the headline comes first";
}

TEST_P(OutOfMemory, ARefusalChangesNothing) {
  void* const held = take(mebibyte);
  const statistics before = stats();
  static_cast<void>(refusal(2 * static_cast<std::size_t>(before.limit_bytes)));
  const statistics after = stats();
  EXPECT_EQ(after.live_bytes, before.live_bytes);
  EXPECT_EQ(after.allocations, before.allocations);
  EXPECT_EQ(after.out_of_memory, before.out_of_memory + 1);
  give(held);
}

TEST_P(OutOfMemory, ASmallerSegmentIsTakenWhereTheFullOneDoesNotFit) {
  if (!is_simulated()) GTEST_SKIP() << needs_simulation;
  sim().set_foreign_bytes(device_bytes - 30 * mebibyte);
  std::vector<void*> all = fill(2 * mebibyte);
  EXPECT_GE(all.size(), 14U) << "of 15";
  give_all(all);
}

TEST_P(OutOfMemory, AsksTheCallbacksWithoutALock) {
  std::vector<void*> all = fill(16 * mebibyte);
  ASSERT_FALSE(all.empty());
  int asked = 0;
  allocator_->on_out_of_memory([&](int device, std::uint64_t needed) {
    ++asked;
    EXPECT_EQ(device, 0);
    EXPECT_GE(needed, 16 * mebibyte);
    EXPECT_TRUE(stats().limit_bytes > 0) << "may be asked for from here";
    if (all.empty()) return false;
    give(all.back());
    all.pop_back();
    return true;
  });
  void* const p = take(16 * mebibyte);
  EXPECT_EQ(asked, 1);
  give(p);
  give_all(all);
}

TEST_P(OutOfMemory, FailsWhenTheCallbacksCannotHelp) {
  int asked = 0;
  allocator_->on_out_of_memory([&](int, std::uint64_t) {
    ++asked;
    return false;
  });
  static_cast<void>(refusal(2 * static_cast<std::size_t>(stats().limit_bytes)));
  EXPECT_EQ(asked, 1);
}

TEST_P(OutOfMemory, EndsWhenACallbackAlwaysSaysYes) {
  int asked = 0;
  allocator_->on_out_of_memory([&](int, std::uint64_t) {
    ++asked;
    return true;
  });
  static_cast<void>(refusal(2 * static_cast<std::size_t>(stats().limit_bytes)));
  EXPECT_GE(asked, 1);
  EXPECT_LE(asked, 1000);
}

/// PyTorch waits for the events of freed blocks, then frees whole segments and asks the driver. It does not search the
/// pool again, so it misses a block that has just become free inside a segment in use.
TEST_P(OutOfMemory, AfterWaitingThePoolIsSearchedAgain) {
  const stream_ref a = device_->create_stream();
  const stream_ref b = device_->create_stream();
  void* const large = take(64 * mebibyte, a);
  give(large);
  void* const pin = take(2 * mebibyte, a);  // keeps the segment in use
  void* const rest = take(60 * mebibyte, a);
  ASSERT_TRUE(allocator_->record_use(rest, b).ok());
  device_->use(b, 20'000'000, rest, 60 * mebibyte);
  give(rest);
  ASSERT_TRUE(allocator_->set_limit(0, stats().reserved_bytes).ok());  // prevents further growth
  std::vector<void*> others = fill(63 * mebibyte, a);                  // memory that is free elsewhere
  void* const again = take(60 * mebibyte, a);
  EXPECT_NE(again, nullptr);
  give(again);
  give_all(others);
  give(pin);
}

/// Blocks fenced by another stream merge with their neighbours before the request is refused.
TEST_P(OutOfMemory, AfterWaitingFreeNeighboursOfDifferentStreamsJoin) {
  const stream_ref a = device_->create_stream();
  const stream_ref b = device_->create_stream();
  const stream_ref c = device_->create_stream();
  give(take(64 * mebibyte, a));
  void* const first = take(32 * mebibyte, a);
  void* const second = take(32 * mebibyte, b);
  device_->use(a, 10'000'000, first, 32 * mebibyte);
  device_->use(b, 20'000'000, second, 32 * mebibyte);
  ASSERT_TRUE(allocator_->record_use(second, a).ok());
  device_->use(a, 30'000'000, second, 32 * mebibyte);
  give(first);
  give(second);
  static_cast<void>(allocator_->set_limit(0, stats().reserved_bytes));
  std::vector<void*> whole = fill(64 * mebibyte, c);
  EXPECT_FALSE(whole.empty());
  give_all(whole);
}

INSTANTIATE_TEST_SUITE_P(Every, OutOfMemory, ::testing::ValuesIn(every_setup()), name_of);

}  // namespace
}  // namespace gpumem::conformance
