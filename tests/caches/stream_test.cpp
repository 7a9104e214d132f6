/// Caches and streams: captures empty caches, a stream's end drops its caches, and a reused handle inherits no block.
#include "cached.hpp"

namespace gpumem::caches {
namespace {

class CachedStreams : public cached_program, public ::testing::WithParamInterface<stream_id_mode> {
 protected:
  void SetUp() override {
    cached_program::SetUp();
    settings s;
    ASSERT_TRUE(s.set("policy", "grab_all").ok());
    ASSERT_TRUE(s.set("limit", "256MiB").ok());
    s.stream_ids = GetParam();
    s.reuse = stream_reuse::device;  // a second stream then finds memory, so that the pool is not short
    open(s);
  }
};

TEST_P(CachedStreams, EachStreamHasItsOwn) {
  const stream_ref a = device_.create_stream();
  const stream_ref b = device_.create_stream();
  give(take(4096, a));
  void* const of_a = take(4096, a);
  device_.enqueue_use(a, 1'000'000, reinterpret_cast<std::uintptr_t>(of_a), 4096);
  give(of_a);
  void* const of_b = take(4096, b);
  EXPECT_NE(of_a, of_b) << "used by a, and b is not ordered behind it";
  void* const of_none = take(4096);
  EXPECT_NE(of_a, of_none);
  EXPECT_EQ(take(4096, a), of_a);
}

TEST_P(CachedStreams, TurnsBetweenStreamsTakeNoLock) {
  const stream_ref streams[] = {device_.create_stream(), device_.create_stream(), {}};
  for (const stream_ref s : streams) give(take(4096, s));
  const std::uint64_t before = stats().locks;
  for (int round = 0; round < 50; ++round) {
    for (const stream_ref s : streams) give(take(4096, s), {.stream = s});
  }
  EXPECT_EQ(stats().locks, before);
}

TEST_P(CachedStreams, ACaptureEmptiesThem) {
  const stream_ref s = device_.create_stream();
  const parked_thread other{[this] { fill_cache(); }};
  fill_cache(s);
  ASSERT_GT(in_caches(), 0U);
  void* const before = take(4096);
  ASSERT_TRUE(allocator_->capture_begin(s).ok());
  ASSERT_TRUE(device_.begin_capture(s).ok());
  EXPECT_EQ(in_caches(), 0U);
  give(before);
  void* const captured = take(4096, s);
  give(captured);
  void* const beside = take(4096);
  give(beside);
  EXPECT_EQ(in_caches(), 0U) << "nor do they take anything in";
  ASSERT_TRUE(device_.end_capture(s).ok());
  const result<graph_ref> g = allocator_->capture_end(s);
  ASSERT_TRUE(g.ok());
  for (int k = 0; k < 3; ++k) {
    void* const p = take(4096, s);
    EXPECT_NE(p, captured) << "it stays with its graph";
    give(p);
  }
  EXPECT_GT(in_caches(), 0U) << "in use again";
  EXPECT_TRUE(allocator_->graph_release(*g).ok());
}

TEST_P(CachedStreams, AReleasedStreamsBlocksLeaveThem) {
  const stream_ref s = device_.create_stream();
  const parked_thread other{[&] { fill_cache(s); }};
  fill_cache(s);
  ASSERT_GT(in_caches(), 0U);
  ASSERT_TRUE(allocator_->stream_release(s).ok());
  EXPECT_EQ(in_caches(), 0U);
  ASSERT_TRUE(device_.destroy_stream(s).ok());
}

// The referee checks that the new stream waits for work of the former stream, which had the same handle.
TEST_P(CachedStreams, AHandleThatIsUsedAgainInheritsNothing) {
  void* handle = nullptr;
  bool repeated = false;
  for (int round = 0; round < 20; ++round) {
    const stream_ref s = device_.create_stream();
    repeated = repeated || s.handle == handle;
    handle = s.handle;
    for (const std::size_t bytes : {512UL, 4096UL, 100'000UL}) {
      std::vector<void*> blocks;
      for (int k = 0; k < 10; ++k) {
        blocks.push_back(take(bytes, s));
        device_.enqueue_use(s, 50'000'000, reinterpret_cast<std::uintptr_t>(blocks.back()), bytes);
      }
      for (void* const p : blocks) give(p);
    }
    if (GetParam() == stream_id_mode::notify || round % 2 == 0) {
      ASSERT_TRUE(allocator_->stream_release(s).ok());
    }
    ASSERT_TRUE(device_.destroy_stream(s).ok());
  }
  EXPECT_TRUE(repeated) << "the simulated device uses handles again, as drivers do";
}

// A block outlives its stream. When it is freed, another stream has the handle, so no cache may keep the block.
TEST_P(CachedStreams, ABlockThatOutlivesItsStreamIsNotKept) {
  const stream_ref s = device_.create_stream();
  fill_cache(s);
  void* const p = take(4096, s);
  device_.enqueue_use(s, 50'000'000, reinterpret_cast<std::uintptr_t>(p), 4096);
  ASSERT_TRUE(allocator_->stream_release(s).ok());
  ASSERT_TRUE(device_.destroy_stream(s).ok());
  const stream_ref next = device_.create_stream();
  give(p);
  EXPECT_EQ(in_caches(), 0U);
  void* const q = take(4096, next);  // the referee says where it comes too early
  give(q);
}

TEST_P(CachedStreams, AUseOnAnotherStreamKeepsABlockOutOfThem) {
  const stream_ref s = device_.create_stream();
  const stream_ref user = device_.create_stream();
  give(take(4096, s));
  void* const p = take(4096, s);
  ASSERT_TRUE(allocator_->record_use(p, user).ok());
  device_.enqueue_use(user, 50'000'000, reinterpret_cast<std::uintptr_t>(p), 4096);
  const std::uint64_t before = in_caches();
  give(p);
  EXPECT_EQ(in_caches(), before);
  EXPECT_EQ(stats().fenced_bytes, 4096U);
  EXPECT_NE(take(4096, s), p) << "in use by another stream";
}

// Streams may end unannounced, so a thread must not keep a record of each for ever.
TEST_P(CachedStreams, ManyStreamsTakeABoundedAmountOfMetadata) {
  std::uint64_t at_limit = 0;
  for (int k = 0; k < 600; ++k) {
    const stream_ref s = device_.create_stream();
    for (int turn = 0; turn < 3; ++turn) give(take(4096, s));
    if (k == 299) at_limit = stats().metadata_bytes;
  }
  EXPECT_LT(stats().metadata_bytes, at_limit + mib);
  EXPECT_TRUE(allocator_->check(0).ok());
}

std::string name_of(const ::testing::TestParamInfo<stream_id_mode>& info) {
  return info.param == stream_id_mode::query ? "query" : "notify";
}
INSTANTIATE_TEST_SUITE_P(Ids, CachedStreams, ::testing::Values(stream_id_mode::query, stream_id_mode::notify), name_of);

}  // namespace
}  // namespace gpumem::caches
