/// Threads x streams: the rules hold whoever calls when, and no thread is left waiting.
///
/// Each worker allocates and frees on a stream of its own and on one that all share, hands blocks to other workers
/// (who use them on their streams, recorded), and ends its stream now and then. Others trim and change the limit, or
/// capture. The referee watches every byte; ThreadSanitizer, where it is built in, every access.
#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <barrier>
#include <mutex>
#include <optional>
#include <ostream>
#include <thread>
#include <vector>

#include "bits.hpp"
#include "gpumem/allocator.hpp"
#include "gpumem/policy.hpp"
#include "gpumem/sim_device.hpp"
#include "log.hpp"

namespace gpumem::stress {
namespace {

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr bool sanitized = true;
#elif defined(__has_feature)
constexpr bool sanitized = __has_feature(address_sanitizer) || __has_feature(thread_sanitizer);
#else
constexpr bool sanitized = false;
#endif

constexpr unsigned workers = 6;
constexpr int steps = sanitized ? 600 : 6000;
constexpr std::uint64_t limit_bytes = 192 * mib;

struct held_block {
  void* at = nullptr;
  std::uint64_t bytes = 0;
};

/// Blocks on their way from one worker to another.
class exchange {
 public:
  void put(held_block b) {
    const std::lock_guard guard{lock_};
    blocks_.push_back(b);
  }
  std::optional<held_block> take() {
    const std::lock_guard guard{lock_};
    if (blocks_.empty()) return std::nullopt;
    const held_block b = blocks_.back();
    blocks_.pop_back();
    return b;
  }

 private:
  std::mutex lock_;
  std::vector<held_block> blocks_;
};

struct setup {
  std::string policy;
  stream_reuse reuse;
  stream_id_mode stream_ids;
};

constexpr std::array reuse_words{"device", "poll", "host"};

std::string text_of(const setup& s) {
  return s.policy + "_" + reuse_words.at(static_cast<std::size_t>(s.reuse)) +
         (s.stream_ids == stream_id_mode::query ? "_query" : "_notify");
}
std::ostream& operator<<(std::ostream& out, const setup& s) { return out << text_of(s); }

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

class Stress : public ::testing::TestWithParam<setup> {
 protected:
  void SetUp() override {
    former_ = set_log_sink([](std::string_view) {});
    settings s;
    ASSERT_TRUE(s.set("policy", GetParam().policy).ok());
    ASSERT_TRUE(s.set("limit", "192MiB").ok());
    ASSERT_TRUE(s.set("pools", "96MiB,96MiB").ok());
    s.reuse = GetParam().reuse;
    s.stream_ids = GetParam().stream_ids;
    const std::array<device*, 1> devices{&device_};
    auto opened = allocator::open(devices, s);
    ASSERT_TRUE(opened.ok()) << opened.why().message();
    allocator_ = std::move(*opened);
  }

  void TearDown() override {
    while (const auto b = exchange_.take()) give(*b);
    EXPECT_EQ(device_.hazard_count(), 0U) << device_.hazards().front().to_string();
    EXPECT_LE(device_.peak_used_bytes(), limit_bytes);
    std::uint64_t reserved = 0;
    for (int pool = 0; pool < 2; ++pool) {
      const status proven = allocator_->check(pool);
      EXPECT_TRUE(proven.ok()) << proven.message();
      EXPECT_EQ(allocator_->stats(pool)->live_bytes, 0U);
      EXPECT_EQ(allocator_->stats(pool)->leaked_bytes, 0U);
      static_cast<void>(allocator_->trim(pool));
      reserved += allocator_->stats(pool)->reserved_bytes;
      if (GetParam().policy != "grab_all") {
        EXPECT_EQ(allocator_->stats(pool)->reserved_bytes, 0U);
      }
    }
    EXPECT_EQ(device_.used_bytes(), reserved);
    allocator_.reset();
    EXPECT_EQ(device_.used_bytes(), 0U);
    static_cast<void>(set_log_sink(former_));
  }

  static std::uint64_t next(std::uint64_t& state) {
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return state;
  }

  std::optional<held_block> take(std::uint64_t bytes, stream_ref s, int pool) {
    const auto got = allocator_->try_allocate({.bytes = bytes, .stream = s, .device = pool});
    if (!got) {
      EXPECT_EQ(got.code(), errc::out_of_memory) << got.why().message();
      return std::nullopt;
    }
    device_.handed_out(reinterpret_cast<std::uintptr_t>(*got), bytes, s);
    return held_block{*got, bytes};
  }

  void give(const held_block& b) {
    device_.given_back(reinterpret_cast<std::uintptr_t>(b.at));
    const status freed = allocator_->try_deallocate(b.at, {.bytes = b.bytes});
    EXPECT_TRUE(freed.ok()) << freed.message();
  }

  void use(const held_block& b, stream_ref s, std::uint64_t lag_ns) {
    device_.enqueue_use(s, lag_ns, reinterpret_cast<std::uintptr_t>(b.at), b.bytes);
  }

  void work(unsigned number) {
    std::uint64_t random = 0x9e3779b97f4a7c15U * (number + 1);
    stream_ref own = device_.create_stream();
    std::vector<held_block> mine;
    for (int step = 0; step < steps; ++step) {
      const std::uint64_t r = next(random);
      switch (r % 16) {
        case 0:  // another worker's block, used here
          if (const auto b = exchange_.take()) {
            EXPECT_TRUE(allocator_->record_use(b->at, own).ok());
            use(*b, own, r >> 8 & 0xfffff);
            give(*b);
          }
          break;
        case 1:
          if (!mine.empty()) {
            exchange_.put(mine.back());
            mine.pop_back();
          }
          break;
        case 2:
          device_.advance_by(r >> 8 & 0xffff);
          break;
        case 3:
          if (r % 7 == 0) {  // the stream ends; the blocks that it allocated do not
            EXPECT_TRUE(allocator_->stream_release(own).ok());
            EXPECT_TRUE(device_.destroy_stream(own).ok());
            own = device_.create_stream();
            for (const held_block& b : mine) give(b);
            mine.clear();
          }
          break;
        case 4:
        case 5:
        case 6:
        case 7:
        case 8:
          if (!mine.empty()) {
            const std::size_t at = (r >> 8) % mine.size();
            give(mine[at]);
            mine[at] = mine.back();
            mine.pop_back();
          }
          break;
        default: {
          const std::uint64_t bytes = r % 3 == 0 ? 1 + (r >> 8) % (6 * mib) : 1 + (r >> 8) % (200 * kib);
          const stream_ref s = r % 5 == 0 ? stream_ref{} : own;
          if (const auto b = take(bytes, s, static_cast<int>(r >> 4 & 1))) {
            use(*b, s, r >> 8 & 0x3ffff);
            mine.push_back(*b);
          }
        }
      }
    }
    for (const held_block& b : mine) give(b);
    EXPECT_TRUE(allocator_->stream_release(own).ok());
    EXPECT_TRUE(device_.destroy_stream(own).ok());
  }

  /// Runs the workers, and each of `beside` on a thread of its own again and again until they are done.
  template <typename... Beside>
  void run_beside(Beside... beside) {
    std::atomic<unsigned> working{workers};
    std::vector<std::thread> threads;
    for (unsigned number = 0; number < workers; ++number) {
      threads.emplace_back([this, number, &working] {
        work(number);
        --working;
      });
    }
    const auto repeat = [&](auto& one) {
      threads.emplace_back([&working, &one] {
        do {
          one();
        } while (working.load() != 0);
      });
    };
    (repeat(beside), ...);
    for (std::thread& t : threads) t.join();
  }

  sim_device device_{{.capacity_bytes = gib}};
  std::unique_ptr<allocator> allocator_;
  exchange exchange_;
  log_sink former_;
};

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

TEST_P(Stress, CallbacksFreeWhatOthersWait) {
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
  run_beside([&] {  // never fits, so each time the callbacks are asked until nothing is left to free
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
