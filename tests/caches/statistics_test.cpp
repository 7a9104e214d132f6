/// The pool's statistics add up at any time and from any thread; with one thread they are exact.
#include <unistd.h>

#include <atomic>
#include <filesystem>
#include <fstream>
#include <mutex>
#include <random>
#include <set>
#include <sstream>

#include "cached.hpp"

namespace gpumem::caches {
namespace {

class CachedStatistics : public cached_program {
 protected:
  CachedStatistics() { calm_ = false; }  // whose blocks would be in the figures
  static std::uint64_t next(std::uint64_t& state) {
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return state;
  }
};

TEST_F(CachedStatistics, OneThreadsFiguresAreExact) {
  const stream_ref streams[] = {{}, device_.create_stream(), device_.create_stream()};
  std::mt19937_64 random{3};
  std::vector<std::pair<void*, std::size_t>> live;
  std::uint64_t live_bytes = 0;
  std::uint64_t requested = 0;
  std::uint64_t peak = 0;
  std::uint64_t allocations = 0;
  std::uint64_t frees = 0;
  for (int n = 0; n < (sanitized ? 5'000 : 50'000); ++n) {
    // Rises and falls, so that the peak is reached now on a hit and now on a miss.
    const bool rising = n / 500 % 2 == 0;
    if (live.empty() || random() % 8 < (rising ? 5U : 3U)) {
      const std::size_t bytes = 1 + random() % (random() % 16 == 0 ? 200'000 : 3'000);
      const result<void*> p = allocator_->try_allocate({.bytes = bytes, .stream = streams[random() % 3]});
      ASSERT_TRUE(p.ok()) << p.why().message();
      live.emplace_back(*p, bytes);
      live_bytes += round_up(bytes, 512);
      requested += bytes;
      peak = std::max(peak, live_bytes);
      ++allocations;
    } else {
      std::swap(live[random() % live.size()], live.back());
      ASSERT_TRUE(allocator_->try_deallocate(live.back().first).ok());
      live_bytes -= round_up(live.back().second, 512);
      requested -= live.back().second;
      live.pop_back();
      ++frees;
    }
    if (random() % 64 != 0) continue;
    const statistics s = stats();
    ASSERT_EQ(s.live_bytes, live_bytes) << "after " << n;
    ASSERT_EQ(s.requested_bytes, requested);
    ASSERT_EQ(s.live_blocks, live.size());
    ASSERT_EQ(s.peak_live_bytes, peak);
    ASSERT_EQ(s.allocations, allocations);
    ASSERT_EQ(s.frees, frees);
  }
  for (const auto& [p, bytes] : live) ASSERT_TRUE(allocator_->try_deallocate(p).ok());
  EXPECT_EQ(stats().live_bytes, 0U);
  EXPECT_EQ(stats().peak_live_bytes, peak);
}

TEST_F(CachedStatistics, CountsSurviveTheThreadsThatMadeThem) {
  for (int round = 0; round < 5; ++round) {
    std::thread{[this] { fill_cache(); }}.join();
  }
  EXPECT_EQ(stats().allocations, 5U * 72);
  EXPECT_EQ(stats().frees, 5U * 72);
  EXPECT_EQ(stats().requested_bytes, 0U);
}

TEST_F(CachedStatistics, AddUpWhileThreadsRun) {
  open("growth");
  constexpr unsigned threads = 4;
  std::atomic<unsigned> working{threads};
  std::vector<std::thread> all;
  for (unsigned t = 0; t < threads; ++t) {
    all.emplace_back([&, t] {
      std::uint64_t random = 0x9e37'79b9'7f4a'7c15U * (t + 1);
      std::vector<void*> mine;
      for (int n = 0; n < (sanitized ? 4'000 : 60'000); ++n) {
        const std::uint64_t r = next(random);
        if (mine.size() < 20 || (mine.size() < 60 && r % 2 == 0)) {
          const result<void*> p = allocator_->try_allocate({.bytes = 1 + (r >> 8) % 30'000});
          if (p) mine.push_back(*p);
        } else {
          EXPECT_TRUE(allocator_->try_deallocate(mine.back()).ok());
          mine.pop_back();
        }
      }
      for (void* const p : mine) EXPECT_TRUE(allocator_->try_deallocate(p).ok());
      --working;
    });
  }
  std::uint64_t asked = 0;
  do {
    const statistics s = stats();
    ASSERT_EQ(s.reserved_bytes,
              s.live_bytes + s.thread_cached_bytes + s.cached_bytes + s.fenced_bytes + s.idle_bytes + s.leaked_bytes);
    ASSERT_LE(s.requested_bytes, s.live_bytes);
    ASSERT_LE(s.live_blocks, threads * 61U);
    ASSERT_LE(s.live_bytes, s.peak_live_bytes);
    ASSERT_EQ(s.allocations - s.frees, s.live_blocks);
    ASSERT_TRUE(allocator_->check(0).ok()) << allocator_->check(0).message();
    ++asked;
  } while (working.load() != 0);
  for (std::thread& t : all) t.join();
  EXPECT_GT(asked, 0U);
  EXPECT_EQ(stats().live_blocks, 0U);
  EXPECT_EQ(stats().requested_bytes, 0U);
  EXPECT_EQ(stats().allocations, stats().frees);
}

// With several threads the peak is approximate: at least every observed value, at most the bytes taken from the heap.
TEST_F(CachedStatistics, ThePeakOfSeveralThreadsIsNotBelowTheTruth) {
  std::uint64_t truth = 0;
  for (int round = 0; round < 20; ++round) {
    std::vector<void*> blocks;
    std::thread{[&] {
      for (int k = 0; k < 50 + round; ++k) blocks.push_back(take(4096));
    }}.join();
    truth = std::max<std::uint64_t>(truth, blocks.size() * 4096);
    EXPECT_GE(stats().peak_live_bytes, truth);
    for (void* const p : blocks) give(p);
  }
  EXPECT_LE(stats().peak_live_bytes, truth + in_caches());
}

// Threads that pass blocks to each other write the trace. It has every free before the next allocation of its address.
TEST_F(CachedStatistics, ATraceIsInOrder) {
  const std::string path =
      (std::filesystem::temp_directory_path() / ("gpumem_cached_" + std::to_string(::getpid()) + ".csv")).string();
  settings s;
  ASSERT_TRUE(s.set("policy", "grab_all").ok());
  ASSERT_TRUE(s.set("limit", "64MiB").ok());
  s.trace_path = path;
  open(s);
  std::mutex lock;
  std::vector<void*> on_the_way;
  std::vector<std::thread> all;
  for (unsigned t = 0; t < 4; ++t) {
    all.emplace_back([&, t] {
      std::uint64_t random = t + 1;
      for (int n = 0; n < (sanitized ? 500 : 4'000); ++n) {
        void* p = allocator_->allocate(512 * (1 + next(random) % 3));
        if (next(random) % 2 == 0) {
          const std::lock_guard guard{lock};
          on_the_way.push_back(p);
          std::swap(on_the_way[next(random) % on_the_way.size()], on_the_way.back());
          p = on_the_way.back();
          on_the_way.pop_back();
        }
        allocator_->deallocate(p);
      }
    });
  }
  for (std::thread& t : all) t.join();
  EXPECT_EQ(stats().live_blocks, 0U);
  const std::uint64_t frees = stats().frees;
  allocator_.reset();

  std::ifstream file{path};
  std::string line;
  std::getline(file, line);
  std::set<std::string> live;
  std::uint64_t seen = 0;
  while (std::getline(file, line)) {
    std::istringstream cells{line};
    std::vector<std::string> c;
    for (std::string cell; std::getline(cells, cell, ',');) c.push_back(cell);
    ASSERT_EQ(c.size(), 6U) << line;
    if (c[2] == "allocate") {
      ASSERT_TRUE(live.insert(c[3]).second) << "allocated before it was freed: " << line;
    } else {
      ASSERT_EQ(live.erase(c[3]), 1U) << "freed but not allocated: " << line;
      ++seen;
    }
  }
  EXPECT_TRUE(live.empty());
  EXPECT_EQ(seen, frees);
  std::filesystem::remove(path);
}

}  // namespace
}  // namespace gpumem::caches
