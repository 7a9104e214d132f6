#include "fast_path.hpp"

#include "fake_arena.hpp"

namespace gpumem {
namespace {

TEST(fast_path, gives_the_latest_block_of_that_size_and_stream_back_without_the_lock) {
  fake_arena a;
  a.calm();
  const std::vector<address> kept = fill(a, 1024, 3);
  EXPECT_EQ(a.cache.fast().allocate_by_key(100, 1000), kept[2]) << "1000 B are 1024";
  EXPECT_EQ(a.cache.fast().allocate_by_key(100, 1500), 0U) << "1536 B";
  EXPECT_EQ(a.cache.fast().allocate_by_key(200, 1024), 0U) << "another stream's";
  EXPECT_EQ(a.cache.fast().allocate_by_key(100, 0), 0U);
  EXPECT_EQ(a.cache.fast().allocate_by_key(100, UINT64_MAX), 0U);
  EXPECT_TRUE(a.cache.fast().free_by_key(kept[2], 100, {}));
  EXPECT_EQ(a.cache.fast().allocate_by_key(100, 1024, handle_of(0)), kept[2]);
  EXPECT_EQ(a.cache.fast().allocate(mine_of(a), handle_of(0), 513), kept[1])
      << "found by the handle that was remembered";
  EXPECT_EQ(a.cache.fast().allocate(mine_of(a), handle_of(7), 513), 0U) << "a handle that was not";
}

TEST(fast_path, takes_a_block_without_the_lock_unless_something_is_wrong) {
  fake_arena a;
  a.calm();
  const address at = fill(a, 1024, 1).front();
  ASSERT_EQ(a.cache.fast().allocate_by_key(100, 1000, handle_of(0)), at);
  thread_cache& mine = mine_of(a);
  const free_args wrong_size{.bytes = 1024};
  EXPECT_FALSE(a.cache.fast().free(mine, at, &wrong_size)) << "1000 were requested";
  const free_args other_stream{.stream = handle_of(9)};
  EXPECT_FALSE(a.cache.fast().free(mine, at, &other_stream));
  EXPECT_FALSE(a.cache.fast().free_by_key(at, 300, {})) << "a stream without a cache";
  EXPECT_FALSE(a.cache.fast().free(mine, at + 512, nullptr)) << "no block begins there";
  const free_args right{.stream = handle_of(0), .bytes = 1000};
  EXPECT_TRUE(a.cache.fast().free(mine, at, &right));
  EXPECT_FALSE(a.cache.fast().free(mine, at, nullptr)) << "a second free";
  EXPECT_FALSE(a.cache.fast().free_by_key(at, std::nullopt, {})) << "a second free";
  EXPECT_EQ(a.cache.fast().allocate_by_key(100, 1024), at);
  EXPECT_TRUE(a.cache.fast().free_by_key(at, std::nullopt, {}));
}

TEST(fast_path, serves_nobody_on_a_device_that_is_not_usable) {
  fake_arena a;
  a.calm();
  const address at = fill(a, 1024, 2).front();
  ASSERT_NE(a.cache.fast().allocate_by_key(100, 1024, handle_of(0)), 0U);
  a.device.fork();
  EXPECT_EQ(a.cache.fast().allocate(mine_of(a), handle_of(0), 1024), 0U);
  EXPECT_EQ(a.cache.fast().allocate_by_key(100, 1024, handle_of(0)), 0U);
  EXPECT_FALSE(a.cache.fast().free(mine_of(a), at, nullptr));
  EXPECT_FALSE(a.cache.fast().free_by_key(at, std::nullopt, {}));
}

TEST(fast_path, serves_under_the_lock_alone_where_somebody_is_told_of_every_free) {
  fake_arena a{{.enabled = true, .without_lock = false, .place = {}}};
  a.calm();
  const address at = fill(a, 1024, 1).front();
  EXPECT_EQ(a.cache.fast().allocate_by_key(100, 1024), 0U);
  EXPECT_EQ(a.cache.fast().allocate_by_key(100, 1024, handle_of(0)), 0U);
  EXPECT_EQ(a.allocate(1024), at) << "refill finds what the thread's bin has";
  EXPECT_FALSE(a.cache.fast().free_by_key(at, std::nullopt, {}));
  EXPECT_FALSE(a.cache.fast().free_by_key(at, 100, {}));
}

TEST(fast_path, takes_a_block_that_is_freed_on_its_own_stream_by_the_handle) {
  fake_arena a;
  a.calm();
  const cached_stream created{3, 300, handle_of(0x1000)};
  static_cast<void>(fill(a, 1024, 1, created));
  const address at = a.cache.fast().allocate_by_key(300, 1000);
  ASSERT_NE(at, 0U);
  EXPECT_FALSE(a.cache.fast().free_by_handle(at, {.stream = handle_of(0x2000)}));
  EXPECT_FALSE(a.cache.fast().free_by_handle(at, {.stream = handle_of(0x1000), .bytes = 999}));
  EXPECT_FALSE(a.cache.fast().free_by_handle(at + 512, {.stream = handle_of(0x1000)}));
  EXPECT_TRUE(a.cache.fast().free_by_handle(at, {.stream = handle_of(0x1000), .bytes = 1000}));
  EXPECT_FALSE(a.cache.fast().free_by_handle(at, {.stream = handle_of(0x1000)})) << "a second free";
}

TEST(fast_path, frees_behind_all_work_wait_in_batches_until_they_are_brought_to_the_arena) {
  using aside = fast_path::deferred;
  fake_arena a;
  std::vector<address> live;
  for (int k = 0; k < 17; ++k) live.push_back(a.allocate(4096));
  const std::uint64_t out = a.out;
  for (int k = 0; k < 15; ++k) EXPECT_EQ(a.cache.fast().defer_free(live[static_cast<std::size_t>(k)]), aside::taken);
  EXPECT_EQ(a.cache.fast().defer_free(live[0]), aside::refused) << "a second free";
  EXPECT_EQ(a.cache.fast().defer_free(live[15]), aside::fence_due);
  const fence behind = *a.device.record_context();
  EXPECT_TRUE(a.cache.fast().attach_fence(behind));
  EXPECT_EQ(a.cache.fast().defer_free(live[16]), aside::taken);
  EXPECT_EQ(a.sums().held_blocks, 17U);
  EXPECT_EQ(a.out, out) << "nothing has come back";
  {
    const std::lock_guard held{a.lock};
    EXPECT_EQ(a.miss(512), 0U);
  }
  EXPECT_EQ(a.came_back, 16U) << "the batch that is complete";
  EXPECT_EQ(a.fenced, 16U);
  EXPECT_FALSE(a.cache.fast().attach_fence({})) << "there is none that it could be of";
  const std::lock_guard held{a.lock};
  std::uint64_t seen = 0;
  {
    const auto stopped = a.cache.stop();
    a.cache.for_each_held([&seen](slot_index, std::uint32_t units, owner_id) { seen += units; });
  }
  EXPECT_EQ(seen, 4096U / 512) << "the one that waits";
  EXPECT_TRUE(a.cache.reclaim_all());
  EXPECT_EQ(a.came_back, 17U);
  EXPECT_EQ(a.fenced, 16U);
}

}  // namespace
}  // namespace gpumem
