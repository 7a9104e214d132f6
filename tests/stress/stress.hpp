/// The workers of the stress tests. Each allocates and frees on its own stream and on a shared one, passes blocks to
/// other workers (who use them on their streams, recorded), and sometimes ends its stream.
#pragma once

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

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
inline constexpr bool sanitized = true;
#elif defined(__has_feature)
inline constexpr bool sanitized = __has_feature(address_sanitizer) || __has_feature(thread_sanitizer);
#else
inline constexpr bool sanitized = false;
#endif

inline constexpr unsigned workers = 6;
inline constexpr int steps = sanitized ? 600 : 6000;
inline constexpr std::uint64_t limit_bytes = 192 * mib;

struct held_block {
  void* at = nullptr;
  std::uint64_t bytes = 0;
};

/// Blocks being passed from one worker to another.
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

inline constexpr std::array reuse_words{"device", "poll", "host"};

inline std::string text_of(const setup& s) {
  return s.policy + "_" + reuse_words.at(static_cast<std::size_t>(s.reuse)) +
         (s.stream_ids == stream_id_mode::query ? "_query" : "_notify");
}
inline std::ostream& operator<<(std::ostream& out, const setup& s) { return out << text_of(s); }

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
      const statistics before = *allocator_->stats(pool);
      const result<trim_result> trimmed = allocator_->trim(pool);
      reserved += allocator_->stats(pool)->reserved_bytes;
      if (GetParam().policy != "grab_all") {
        const statistics after = *allocator_->stats(pool);
        EXPECT_EQ(after.reserved_bytes, 0U)
            << "pool " << pool << " returned " << trimmed->returned_bytes << ", in use " << trimmed->in_use_bytes
            << ", pending " << trimmed->pending_bytes << "; before: thread caches " << before.thread_cached_bytes
            << ", cached " << before.cached_bytes << ", fenced " << before.fenced_bytes << ", idle "
            << before.idle_bytes << "; after: " << after.thread_cached_bytes << ", " << after.cached_bytes << ", "
            << after.fenced_bytes << ", " << after.idle_bytes;
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
          if (r % 7 == 0) {  // the stream ends; its blocks stay live
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

  /// Runs the workers, and meanwhile each of `beside` in a loop on its own thread.
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

}  // namespace gpumem::stress
