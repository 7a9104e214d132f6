/// The cap, trim, and a limit that changes: exact to the byte, under any number of threads.
#include <thread>

#include "setup.hpp"

namespace gpumem::conformance {
namespace {

class Limit : public program {
 protected:
  [[nodiscard]] bool keeps_everything() const { return GetParam().policy == "grab_all"; }
};

TEST_P(Limit, IsNeverExceededByAByteUnderEightThreads) {
  if (!is_simulated()) GTEST_SKIP() << needs_simulation;
  std::uint64_t allowed = 0;
  for (int pool = 0; pool < pools(); ++pool) {
    const std::uint64_t odd = stats(pool).limit_bytes / 4 + 511;
    ASSERT_TRUE(allocator_->set_limit(pool, odd).ok());
    allowed += odd;
  }
  std::vector<std::thread> threads;
  for (unsigned t = 0; t < 8; ++t) {
    threads.emplace_back([this, t] {
      const int pool = static_cast<int>(t) % pools();
      std::vector<void*> mine;
      std::size_t bytes = 100'000 + t * 7777;
      for (int i = 0; i < 200; ++i) {
        const auto got = allocator_->try_allocate({.bytes = bytes, .stream = {}, .device = pool});
        if (got) mine.push_back(*got);
        bytes = bytes * 5 / 4 % (std::size_t{24} << 20) + 1;
        if (!got || i % 3 == 2) {
          if (mine.empty()) continue;
          EXPECT_TRUE(allocator_->try_deallocate(mine.back()).ok());
          mine.pop_back();
        }
      }
      for (void* p : mine) EXPECT_TRUE(allocator_->try_deallocate(p).ok());
    });
  }
  for (std::thread& t : threads) t.join();
  EXPECT_LE(sim().peak_used_bytes(), allowed);
  std::uint64_t peak = 0;
  for (int pool = 0; pool < pools(); ++pool) {
    peak += stats(pool).peak_reserved_bytes;
    EXPECT_LE(stats(pool).peak_reserved_bytes, stats(pool).limit_bytes);
    EXPECT_EQ(stats(pool).live_bytes, 0U);
  }
  EXPECT_GE(peak, sim().peak_used_bytes());
}

TEST_P(Limit, CanBeUsedUp) {
  for (int pool = 0; pool < pools(); ++pool) {
    const std::uint64_t limit = stats(pool).limit_bytes;
    std::vector<void*> all = fill(std::size_t{2} << 20, {}, pool);
    EXPECT_GT(all.size() * (std::size_t{2} << 20), limit - (std::size_t{4} << 20)) << "limit " << limit;
    EXPECT_LE(stats(pool).reserved_bytes, limit);
    give_all(all);
  }
}

TEST_P(Limit, TrimReturnsIdleMemoryAndReportsTheRest) {
  const stream_ref s = device_->create_stream();
  void* const live = take(std::size_t{1} << 20, s);
  void* const idle = take(std::size_t{64} << 20, s);
  device_->use(s, 1'000'000, idle, std::size_t{64} << 20);
  give(idle);
  const statistics before = stats();
  const trim_result trimmed = *allocator_->trim(0);
  const statistics after = stats();
  EXPECT_EQ(after.reserved_bytes, before.reserved_bytes - trimmed.returned_bytes);
  EXPECT_EQ(trimmed.in_use_bytes + trimmed.pending_bytes + trimmed.kept_bytes, after.reserved_bytes - after.live_bytes);
  EXPECT_EQ(trimmed.pending_bytes, 0U) << "it may wait";
  if (keeps_everything()) {
    EXPECT_EQ(trimmed.returned_bytes, 0U);
  } else {
    EXPECT_GE(trimmed.returned_bytes, std::size_t{64} << 20);
    EXPECT_EQ(trimmed.kept_bytes, 0U);
  }
  give(live);
  const trim_result rest = *allocator_->trim(0);
  if (keeps_everything()) {
    EXPECT_EQ(rest.kept_bytes, stats().reserved_bytes);
  } else {
    EXPECT_EQ(stats().reserved_bytes, 0U);
    if (is_simulated() && pools() == 1) {
      EXPECT_EQ(sim().used_bytes(), 0U);
    }
  }
}

TEST_P(Limit, TrimReturnsNoMoreSegmentsThanItTakes) {
  if (keeps_everything()) GTEST_SKIP() << "grab_all gives nothing back";
  std::vector<void*> blocks;
  for (int i = 0; i < 4; ++i) blocks.push_back(take(std::size_t{24} << 20));
  give_all(blocks);
  const std::uint64_t before = stats().reserved_bytes;
  const trim_result trimmed = *allocator_->trim(0, 1);
  EXPECT_GE(trimmed.returned_bytes, 1U);
  EXPECT_LT(trimmed.returned_bytes, before) << "one segment is enough for one byte";
}

TEST_P(Limit, TrimReturnsEverythingAfterARecordedUse) {
  if (keeps_everything()) GTEST_SKIP() << "grab_all gives nothing back";
  const stream_ref a = device_->create_stream();
  const stream_ref b = device_->create_stream();
  void* const p = take(std::size_t{8} << 20, a);
  ASSERT_TRUE(allocator_->record_use(p, b).ok());
  device_->use(a, 1'000'000, p, std::size_t{8} << 20);
  device_->use(b, 2'000'000, p, std::size_t{8} << 20);
  give(p);
  const trim_result trimmed = *allocator_->trim(0);
  EXPECT_EQ(trimmed.pending_bytes, 0U);
  EXPECT_EQ(stats().reserved_bytes, 0U);
}

TEST_P(Limit, GoesDownAndUpAgain) {
  void* const live = take(std::size_t{16} << 20);
  void* const idle = take(std::size_t{64} << 20);
  give(idle);
  const std::uint64_t former = stats().limit_bytes;
  const result<limit_result> down = allocator_->set_limit(0, std::uint64_t{8} << 20);
  ASSERT_TRUE(down.ok()) << down.why().message();
  EXPECT_EQ(down->limit_bytes, std::uint64_t{8} << 20);
  EXPECT_EQ(down->reserved_bytes, stats().reserved_bytes);
  EXPECT_EQ(down->over_bytes, stats().reserved_bytes - (std::uint64_t{8} << 20));
  EXPECT_EQ(down->live_bytes, std::uint64_t{16} << 20);
  EXPECT_FALSE(down->to_string().empty());
  if (!keeps_everything()) {
    EXPECT_GE(down->trimmed.returned_bytes, std::uint64_t{32} << 20);
  }

  const std::uint64_t held = stats().reserved_bytes;
  std::vector<void*> inside = fill(std::size_t{2} << 20);
  EXPECT_LE(stats().reserved_bytes, held) << "nothing is taken beyond the limit";
  give_all(inside);

  ASSERT_TRUE(allocator_->set_limit(0, former).ok());
  give(take(std::size_t{64} << 20));
  give(live);
}

TEST_P(Limit, ThatCannotBeIsRefused) {
  const std::uint64_t before = stats().limit_bytes;
  for (const std::uint64_t bytes : {std::uint64_t{0}, device_bytes + 1, UINT64_MAX}) {
    EXPECT_EQ(allocator_->set_limit(0, bytes).code(), errc::bad_setting) << bytes;
  }
  if (pools() > 1) {
    EXPECT_EQ(allocator_->set_limit(0, device_bytes).code(), errc::bad_setting) << "the other pool has a share";
  }
  EXPECT_EQ(stats().limit_bytes, before);
}

INSTANTIATE_TEST_SUITE_P(Every, Limit, ::testing::ValuesIn(every_setup()), name_of);

}  // namespace
}  // namespace gpumem::conformance
