/// Properties of every request and every free, under every setup.
#include <gmock/gmock.h>

#include <climits>
#include <cstring>
#include <limits>

#include "log.hpp"
#include "setup.hpp"

namespace gpumem::conformance {
namespace {

using ::testing::HasSubstr;

class Contract : public program {
 protected:
  status refusal(const request& r) { return allocator_->try_allocate(r).why(); }
};

TEST_P(Contract, TakesNothingBeforeTheFirstRequest) {
  for (int pool = 0; pool < pools(); ++pool) EXPECT_EQ(stats(pool).reserved_bytes, 0U);
  if (is_simulated()) {
    EXPECT_EQ(sim().used_bytes(), 0U);
  }
}

TEST_P(Contract, ABlockHasTheRequestedSizeAndAlignment) {
  for (int pool = 0; pool < pools(); ++pool) {
    for (const std::size_t bytes : {std::size_t{1}, std::size_t{511}, std::size_t{512}, std::size_t{513},
                                    std::size_t{1000000}, std::size_t{20} << 20}) {
      auto* const p = static_cast<char*>(take(bytes, {}, pool));
      const result<block_info> info = allocator_->describe(p + bytes - 1);
      ASSERT_TRUE(info.ok()) << info.why().message();
      EXPECT_EQ(info->begin, reinterpret_cast<std::uintptr_t>(p));
      EXPECT_EQ(info->begin % block_granularity, 0U);
      EXPECT_EQ(info->requested_bytes, bytes);
      EXPECT_GE(info->bytes, bytes);
      EXPECT_EQ(info->bytes % block_granularity, 0U);
      EXPECT_GE(info->begin, info->segment_begin);
      EXPECT_LE(info->begin + info->bytes, info->segment_begin + info->segment_bytes);
      EXPECT_EQ(info->device, pool);
      give(p);
      EXPECT_FALSE(allocator_->describe(p).ok());
    }
  }
}

TEST_P(Contract, EveryAlignmentIsKept) {
  for (std::size_t alignment = 1; alignment <= std::size_t{4} << 20; alignment *= 2) {
    void* const small = take(700, {}, 0, alignment);
    void* const large = take(std::size_t{3} << 20, {}, 0, alignment);
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(small) % alignment, 0U) << alignment;
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(large) % alignment, 0U) << alignment;
    give(small);
    give(large);
  }
}

TEST_P(Contract, StatisticsCountLiveBlocks) {
  const int pool = pools() - 1;
  void* const a = take(100, {}, pool);
  void* const b = take(5000, {}, pool);
  const statistics held = stats(pool);
  EXPECT_EQ(held.live_bytes, 512U + 5120U);
  EXPECT_EQ(held.requested_bytes, 5100U);
  EXPECT_EQ(held.live_blocks, 2U);
  EXPECT_EQ(held.allocations, 2U);
  give(a);
  give(b);
  const statistics after = stats(pool);
  EXPECT_EQ(after.live_bytes, 0U);
  EXPECT_EQ(after.requested_bytes, 0U);
  EXPECT_EQ(after.frees, 2U);
  EXPECT_EQ(after.peak_live_bytes, 5632U);
  EXPECT_EQ(after.peak_reserved_bytes, held.reserved_bytes);
}

TEST_P(Contract, FreedMemoryServesAgainWithoutGrowing) {
  give(take(std::size_t{3} << 20));
  const std::uint64_t reserved = stats().reserved_bytes;
  for (int i = 0; i < 1000; ++i) give(take(std::size_t{2} << 20));
  EXPECT_EQ(stats().reserved_bytes, reserved);
}

TEST_P(Contract, FreeNeighboursBecomeOneBlock) {
  give(take(std::size_t{32} << 20));
  const std::uint64_t reserved = stats().reserved_bytes;
  std::vector<void*> pieces;
  for (int i = 0; i < 8; ++i) pieces.push_back(take(std::size_t{4} << 20));
  for (const std::size_t i : {1U, 3U, 5U, 7U, 0U, 2U, 4U, 6U}) give(pieces[i]);
  give(take(std::size_t{32} << 20));
  EXPECT_EQ(stats().reserved_bytes, reserved);
}

TEST_P(Contract, AnImpossibleFormIsRefused) {
  const statistics before = stats();
  for (const request& r : {request{.bytes = 0}, request{.bytes = 512, .alignment = 0},
                           request{.bytes = 512, .alignment = 3}, request{.bytes = 512, .alignment = 768}}) {
    const status why = refusal(r);
    EXPECT_EQ(why.code(), errc::invalid_argument);
    EXPECT_THAT(why.message(), HasSubstr("expected"));
  }
  for (const int device : {-1, pools(), INT_MIN, INT_MAX}) {
    const status why = refusal({.bytes = 512, .device = device});
    EXPECT_EQ(why.code(), errc::wrong_device);
    EXPECT_THAT(why.message(), HasSubstr(std::to_string(device)));
  }
  EXPECT_EQ(stats().reserved_bytes, before.reserved_bytes);
}

TEST_P(Contract, SizesNearTheEndOfTheAddressSpaceAreRefused) {
  constexpr std::size_t most = std::numeric_limits<std::size_t>::max();
  void* const held = take(4096);
  const std::uint64_t live = stats().live_bytes;
  for (const std::size_t bytes : {most, most - 1, most - 511, most - 512, most - (std::size_t{2} << 20),
                                  std::size_t{1} << 63, (std::size_t{1} << 63) - 1, std::size_t{1} << 62}) {
    for (const std::size_t alignment : {std::size_t{512}, std::size_t{1} << 21, std::size_t{1} << 40}) {
      const errc code = refusal({.bytes = bytes, .alignment = alignment}).code();
      EXPECT_TRUE(code == errc::invalid_argument || code == errc::out_of_memory) << bytes << ": " << to_string(code);
    }
  }
  EXPECT_EQ(stats().live_bytes, live);
  give(held);
}

TEST_P(Contract, AllocateThrowsTheErrorOfTryAllocate) {
  try {
    static_cast<void>(allocator_->allocate(0));
    FAIL() << "0 bytes were allocated";
  } catch (const bad_request& e) {
    EXPECT_EQ(e.why().code(), errc::invalid_argument);
    EXPECT_STREQ(e.what(), e.why().message().c_str());
  }
  const std::size_t too_much = std::size_t{2} * device_bytes;
  try {
    static_cast<void>(allocator_->allocate(too_much));
    FAIL() << "twice the device was allocated";
  } catch (const out_of_memory& e) {
    const oom_report& report = e.report();
    EXPECT_EQ(report.cause, stats().limit_bytes < device_bytes ? oom_cause::limit : oom_cause::device_full);
    EXPECT_EQ(report.requested_bytes, too_much);
    EXPECT_EQ(report.rounded_bytes, too_much);
    EXPECT_EQ(report.pool, allocator_->devices().front().name);
    EXPECT_EQ(report.policy, GetParam().policy);
    EXPECT_EQ(report.pool_statistics.limit_bytes, stats().limit_bytes);
    EXPECT_THAT(e.what(), HasSubstr(report.headline()));
    EXPECT_EQ(e.what(), report.to_string());
  }
  EXPECT_THROW(static_cast<void>(allocator_->allocate(too_much)), std::bad_alloc);
  EXPECT_EQ(stats().out_of_memory, 2U);
}

TEST_P(Contract, FreeingNullIsNothing) {
  EXPECT_TRUE(allocator_->try_deallocate(nullptr).ok());
  allocator_->deallocate(nullptr);
  EXPECT_EQ(stats().misuses, 0U);
}

TEST_P(Contract, ASecondFreeIsRefused) {
  void* const neighbour = take(4096);
  void* const p = take(4096);
  give(p);
  const status again = allocator_->try_deallocate(p);
  EXPECT_EQ(again.code(), errc::double_free);
  EXPECT_FALSE(again.message().empty());
  EXPECT_EQ(stats().misuses, 1U);
  give(neighbour);
}

TEST_P(Contract, AnUnknownPointerIsRefused) {
  int foreign = 0;
  auto* const p = static_cast<char*>(take(4096));
  EXPECT_EQ(allocator_->try_deallocate(&foreign).code(), errc::unknown_pointer);
  EXPECT_EQ(allocator_->try_deallocate(p + 512).code(), errc::unknown_pointer);
  EXPECT_EQ(allocator_->try_deallocate(p + 1).code(), errc::unknown_pointer);
  EXPECT_EQ(allocator_->record_use(&foreign, {}).code(), errc::unknown_pointer);
  EXPECT_EQ(allocator_->describe(&foreign).code(), errc::unknown_pointer);
  EXPECT_EQ(stats().misuses, 3U);
  give(p);
}

TEST_P(Contract, AFreeThatStatesSomethingWrongIsRefused) {
  const int pool = pools() - 1;
  void* const p = take(5000, {}, pool);
  EXPECT_EQ(allocator_->try_deallocate(p, {.bytes = 5001}).code(), errc::wrong_size);
  EXPECT_EQ(allocator_->try_deallocate(p, {.bytes = 5120}).code(), errc::wrong_size);
  EXPECT_EQ(allocator_->try_deallocate(p, {.device = pools()}).code(), errc::wrong_device);
  EXPECT_EQ(allocator_->try_deallocate(p, {.device = -1}).code(), errc::wrong_device);
  if (pools() > 1) {
    EXPECT_EQ(allocator_->try_deallocate(p, {.device = 0}).code(), errc::wrong_device);
  }
  EXPECT_EQ(stats(pool).live_blocks, 1U);
  give(p, {.stream = stream_ref{}, .bytes = 5000, .device = pool});
  EXPECT_EQ(stats(pool).live_blocks, 0U);
}

TEST_P(Contract, DeallocateLogsMisuseAndGoesOn) {
  std::string logged;
  const log_sink former = set_log_sink([&](std::string_view line) { logged += line; });
  int foreign = 0;
  allocator_->deallocate(&foreign);
  static_cast<void>(set_log_sink(former));
  EXPECT_THAT(logged, HasSubstr("is not a block"));
  EXPECT_EQ(stats().misuses, 1U);
  give(take(512));
}

TEST_P(Contract, ADeviceThatDoesNotExistIsRefusedEverywhere) {
  for (const int device : {-1, pools()}) {
    EXPECT_EQ(allocator_->stats(device).code(), errc::wrong_device);
    EXPECT_EQ(allocator_->check(device).code(), errc::wrong_device);
    EXPECT_EQ(allocator_->set_limit(device, 1U << 20).code(), errc::wrong_device);
    EXPECT_EQ(allocator_->trim(device).code(), errc::wrong_device);
  }
}

TEST_P(Contract, MemoryGoesBackToTheDeviceWithTheAllocator) {
  if (!is_simulated()) GTEST_SKIP() << needs_simulation;
  for (int pool = 0; pool < pools(); ++pool) give(take(std::size_t{5} << 20, {}, pool));
  EXPECT_GT(sim().used_bytes(), 0U);
  allocator_.reset();
  EXPECT_EQ(sim().used_bytes(), 0U);
}

INSTANTIATE_TEST_SUITE_P(Every, Contract, ::testing::ValuesIn(every_setup()), name_of);

}  // namespace
}  // namespace gpumem::conformance
