/// Threads x streams: the rules hold under every interleaving, and no thread waits for ever.
///
/// The workers (stress.hpp) run while others trim, change the limit, or capture. The referee watches every byte;
/// ThreadSanitizer, if built in, every access.
#include "stress.hpp"

namespace gpumem::stress {
namespace {

std::vector<setup> every_setup() {
  std::vector<setup> out;
  for (const policy_entry& entry : known_policies()) {
    out.push_back({entry.name, stream_reuse::device, stream_id_mode::query});
    out.push_back({entry.name, stream_reuse::device, stream_id_mode::notify});
    out.push_back({entry.name, stream_reuse::poll, stream_id_mode::notify});
    out.push_back({entry.name, stream_reuse::host, stream_id_mode::query});
  }
  return out;
}

std::string name_of(const ::testing::TestParamInfo<setup>& info) { return text_of(info.param); }

TEST_P(Stress, TrimAndLimitsChangeBesideTheWorkers) {
  std::uint64_t random = 42;
  run_beside([&] {
    const std::uint64_t r = next(random);
    const int pool = static_cast<int>(r & 1);
    static_cast<void>(allocator_->trim(pool, r % 3 == 0 ? UINT64_MAX : (r >> 8) % (16 * mib)));
    EXPECT_TRUE(allocator_->set_limit(pool, 8 * mib + (r >> 8) % (88 * mib)).ok());
    EXPECT_TRUE(allocator_->check(pool).ok());
    EXPECT_TRUE(allocator_->stats(pool).ok());
    std::this_thread::yield();
  });
}

TEST_P(Stress, CapturesGoOnBesideTheWorkers) {
  const stream_ref s = device_.create_stream();
  const auto capture = [&] {
    EXPECT_TRUE(allocator_->capture_begin(s).ok());
    EXPECT_TRUE(device_.begin_capture(s).ok());
    const auto a = take(300 * kib, s, 0);
    const auto b = take(2 * mib, s, 1);
    if (a) give(*a);
    std::this_thread::yield();
    const status unspoilt = device_.end_capture(s);
    EXPECT_TRUE(unspoilt.ok()) << unspoilt.message();
    const result<graph_ref> g = allocator_->capture_end(s);
    ASSERT_TRUE(g.ok()) << g.why().message();
    if (b) give(*b);
    EXPECT_TRUE(allocator_->graph_release(*g).ok());
    std::this_thread::yield();
  };
  const auto trim = [&] {
    static_cast<void>(allocator_->trim(0));
    if (const auto b = take(90 * mib, {}, 1)) give(*b);
    std::this_thread::yield();
  };
  run_beside(capture, trim);
}

TEST_P(Stress, CallbacksFreeMemoryWhileOthersWait) {
  std::atomic<int> asked{0};
  allocator_->on_out_of_memory([&](int, std::uint64_t) {
    ++asked;
    const auto b = exchange_.take();
    if (!b) return false;
    give(*b);
    return true;
  });
  const auto pinned = take(2 * mib, {}, 0);
  ASSERT_TRUE(pinned.has_value());
  run_beside([&] {  // never fits, so each time the callbacks run until nothing is left to free
    EXPECT_FALSE(take(95 * mib, {}, 0).has_value());
    std::this_thread::yield();
  });
  give(*pinned);
  EXPECT_GT(asked.load(), 0);
}

TEST_P(Stress, OfManyFreesOfABlockOneSucceeds) {
  constexpr int rounds = 100;
  constexpr std::ptrdiff_t threads = 4;
  void* block = nullptr;
  std::atomic<int> freed{0};
  const auto allocate_next = [&]() noexcept { block = *allocator_->try_allocate({.bytes = 4096}); };
  allocate_next();
  std::barrier ready{threads, allocate_next};
  std::vector<std::thread> all;
  for (std::ptrdiff_t t = 0; t < threads; ++t) {
    all.emplace_back([&] {
      for (int round = 0; round < rounds; ++round) {
        const status s = allocator_->try_deallocate(block);
        if (s.ok()) {
          ++freed;
        } else {
          EXPECT_EQ(s.code(), errc::double_free) << s.message();
        }
        ready.arrive_and_wait();
      }
    });
  }
  for (std::thread& t : all) t.join();
  EXPECT_EQ(freed.load(), rounds);
  EXPECT_EQ(allocator_->stats(0)->misuses, static_cast<std::uint64_t>(rounds) * (threads - 1));
  EXPECT_TRUE(allocator_->try_deallocate(block).ok());
}

INSTANTIATE_TEST_SUITE_P(Every, Stress, ::testing::ValuesIn(every_setup()), name_of);

}  // namespace
}  // namespace gpumem::stress
