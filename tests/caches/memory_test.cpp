/// Cached memory is never lost: it serves any request that needs it, goes back on `trim`, and stays small.
#include <sys/resource.h>

#include <fstream>
#include <map>
#include <new>
#include <random>

#include "cached.hpp"
#include "forwarding_device.hpp"
#include "gpumem/policy.hpp"
#include "stream_cache.hpp"

namespace gpumem::caches {
namespace {

class CachedMemory : public cached_program {
 protected:
  /// The largest request that succeeds in a new allocator for each tried size.
  std::uint64_t largest_after(std::string_view policy, bool thread_cache, bool by_another_thread) {
    std::uint64_t best = 0;
    for (const std::uint64_t bytes : {16 * mib, 64 * mib, 128 * mib, 200 * mib, 256 * mib}) {
      calm_ = false;  // uses growth's segments unchanged
      open(policy, thread_cache);
      give(take(200 * mib));  // so that there is room for caches
      calm(*allocator_);
      const auto fill = [this] {
        for (int turn = 0; turn < 10; ++turn) {  // the first turns may grow, and a pool that grows keeps nothing
          fill_cache();
          fill_cache(second_);
        }
      };
      std::unique_ptr<parked_thread> other;
      if (by_another_thread) {
        other = std::make_unique<parked_thread>(fill);
      } else {
        fill();
      }
      if (thread_cache && policy != "caching") {  // its streams take turns at the limit: caches then keep nothing
        EXPECT_GT(in_caches(), 0U) << policy;
      }
      const result<void*> got = allocator_->try_allocate({.bytes = bytes});
      if (got.ok()) {
        best = bytes;
        EXPECT_TRUE(allocator_->try_deallocate(*got).ok());
      }
      other.reset();
    }
    return best;
  }
  stream_ref second_ = device_.create_stream();
};

TEST_F(CachedMemory, IsNeverTheCauseOfAnOutOfMemory) {
  for (const policy_entry& entry : known_policies()) {
    const std::uint64_t without = largest_after(entry.name, false, false);
    EXPECT_GT(without, 0U) << entry.name;
    EXPECT_EQ(largest_after(entry.name, true, false), without) << entry.name;
    EXPECT_EQ(largest_after(entry.name, true, true), without) << entry.name << ", filled by another thread";
  }
}

// All memory at once in small blocks: exactly as many blocks as without caches.
TEST_F(CachedMemory, ServesAsMuchAsWithoutCaches) {
  const auto count = [this] {
    std::vector<void*> all;
    while (true) {
      const result<void*> got = allocator_->try_allocate({.bytes = 256 * kib});
      if (!got) break;
      all.push_back(*got);
    }
    for (void* const p : all) EXPECT_TRUE(allocator_->try_deallocate(p).ok());
    return all.size();
  };
  std::map<bool, std::size_t> served;
  for (const bool thread_cache : {false, true}) {
    open("grab_all", thread_cache);
    EXPECT_EQ(count(), 256 * mib / (256 * kib));
    const parked_thread other{[this] { fill_cache(); }};
    fill_cache(second_);
    served[thread_cache] = count();
  }
  EXPECT_EQ(served[true], served[false]);
}

// Another thread frees into its cache while this one, about to run out of memory, waits for the driver.
TEST_F(CachedMemory, FreedWhileTheDriverWasAskedIsFound) {
  allocator_.reset();
  forwarding_device hooked{device_};
  settings s;
  ASSERT_TRUE(s.set("policy", "growth").ok());
  device* const devices[] = {&hooked};
  auto opened = pooled_allocator::open(devices, s);
  ASSERT_TRUE(opened.ok()) << opened.why().message();
  allocator_ = *std::move(opened);
  give(take(62 * mib));
  void* const below = take(28 * mib);
  void* const between = take(512);
  void* const above = take(28 * mib);
  ASSERT_EQ(static_cast<std::byte*>(above) - static_cast<std::byte*>(between), 512) << "one behind the other";
  give(below);
  give(above);
  device_.set_foreign_bytes(gib);  // the device has no more
  std::barrier step{2};
  std::thread frees{[&] {
    give(take(512));  // makes the cache keep this size
    step.arrive_and_wait();
    step.arrive_and_wait();
    give(between);
    step.arrive_and_wait();
    step.arrive_and_wait();  // its cache stays as it is until the request has been answered
  }};
  step.arrive_and_wait();
  hooked.before_alloc = [&] {
    hooked.before_alloc = nullptr;
    step.arrive_and_wait();
    step.arrive_and_wait();
  };
  const result<void*> got = allocator_->try_allocate({.bytes = 50 * mib});
  ASSERT_FALSE(hooked.before_alloc) << "the device was asked";
  step.arrive_and_wait();
  frees.join();
  EXPECT_TRUE(got.ok()) << got.why().message();
  if (got.ok()) {
    EXPECT_TRUE(allocator_->try_deallocate(*got).ok());
  }
  EXPECT_TRUE(allocator_->check(0).ok());
  allocator_.reset();
}

TEST_F(CachedMemory, GoesBackWhenAThreadEnds) {
  std::thread{[this] {
    fill_cache();
    fill_cache(second_);
    EXPECT_GT(in_caches(), 0U);
  }}.join();
  EXPECT_EQ(in_caches(), 0U);
  EXPECT_EQ(stats().live_blocks, 0U);
  EXPECT_EQ(stats().cached_bytes + stats().idle_bytes, stats().reserved_bytes);
}

TEST_F(CachedMemory, TrimFlushesEveryCache) {
  open("growth");
  fill_cache();  // the pool need not grow below, which would empty the caches
  calm(*allocator_);
  const parked_thread other{[this] { fill_cache(second_); }};
  fill_cache();
  ASSERT_GT(in_caches(), 0U);
  const trim_result trimmed = *allocator_->trim(0);
  EXPECT_EQ(in_caches(), 0U);
  EXPECT_EQ(stats().reserved_bytes, 0U) << trimmed.in_use_bytes << " in use";
  EXPECT_EQ(device_.used_bytes(), 0U);
  calm(*allocator_);
  fill_cache();
  EXPECT_GT(in_caches(), 0U) << "and they fill again";
}

TEST_F(CachedMemory, ALowerLimitFlushesEveryCache) {
  open("growth");
  const parked_thread other{[this] { fill_cache(second_); }};
  fill_cache();
  ASSERT_GT(stats().reserved_bytes, 2 * mib);
  const result<limit_result> lowered = allocator_->set_limit(0, 2 * mib);
  ASSERT_TRUE(lowered.ok());
  EXPECT_EQ(lowered->over_bytes, 0U) << lowered->to_string();
  EXPECT_LE(device_.used_bytes(), 2 * mib);
}

TEST_F(CachedMemory, IsZeroWhereCachesAreOff) {
  open("grab_all", false);
  const std::uint64_t before = stats().locks;
  const std::uint64_t calls = 2 * 6 * 12;
  fill_cache();
  EXPECT_EQ(in_caches(), 0U);
  EXPECT_EQ(stats().locks - before, calls) << "each call takes the lock";
  std::thread{[this] { fill_cache(); }}.join();
  EXPECT_EQ(in_caches(), 0U);
}

TEST_F(CachedMemory, AnOptionSwitchesItForOneDevice) {
  sim_config second;
  second.ordinal = 1;
  second.first_address = 0x3000'0000'0000;
  sim_device other{second};
  settings s;
  ASSERT_TRUE(s.apply({{"GPUMEM_THREAD_CACHE_1", "0"}}).ok());
  device* const devices[] = {&device_, &other};
  auto opened = allocator::open(devices, s);
  ASSERT_TRUE(opened.ok()) << opened.why().message();
  calm(**opened);
  for (const int ordinal : {0, 1}) {
    const auto pair = [&] {
      const auto p = (*opened)->try_allocate({.bytes = 512, .device = ordinal});
      EXPECT_TRUE((*opened)->try_deallocate(*p).ok());
    };
    pair();
    EXPECT_EQ((*opened)->stats(ordinal)->thread_cached_bytes, ordinal == 0 ? 512U : 0U);
  }
}

// One thread and one stream: caches raise the reserved memory by little or nothing.
TEST_F(CachedMemory, CostsLittleUtilization) {
  std::map<bool, std::uint64_t> reserved;
  for (const bool thread_cache : {false, true}) {
    open("growth", thread_cache);
    std::mt19937_64 random{7};
    std::vector<std::pair<void*, std::size_t>> live;
    for (int n = 0; n < (sanitized ? 5'000 : 40'000); ++n) {
      if (live.size() < 100 || random() % 2 == 0) {
        const std::size_t bytes = std::size_t{512} << random() % 11;
        live.emplace_back(take(bytes), bytes);
        if (live.size() < 200) continue;
      }
      std::swap(live[random() % live.size()], live.back());
      give(live.back().first);
      live.pop_back();
    }
    for (const auto& [p, bytes] : live) give(p);
    reserved[thread_cache] = stats().peak_reserved_bytes;
  }
  EXPECT_LE(static_cast<double>(reserved[true]), static_cast<double>(reserved[false]) * 1.05);
}

TEST_F(CachedMemory, TheRecordsOfManyBlocksAreBounded) {
  constexpr std::size_t blocks = 100'000;
  std::vector<void*> all;
  const auto take_all = [&] {
    for (std::size_t k = 0; k < blocks; ++k) all.push_back(allocator_->allocate(512));
  };
  const auto give_all = [&] {
    for (void* const p : all) allocator_->deallocate(p);
    all.clear();
  };
  const std::uint64_t before = stats().metadata_bytes;
  take_all();
  const std::uint64_t full = stats().metadata_bytes;
  EXPECT_LE(full - before, blocks * 200) << static_cast<double>(full - before) / blocks << " B a block";
  give_all();
  for (int round = 0; round < 3; ++round) {
    take_all();
    give_all();
  }
  EXPECT_LE(stats().metadata_bytes, full + 128 * kib) << "the second time takes a cache, and nothing more";
}

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)  // they take terabytes of addresses themselves
// The host has no memory for another slot: the request fails, and the block prepared for it becomes free.
TEST_F(CachedMemory, ABlockWithoutARecordIsNotLost) {
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_AS, &before), 0);
  std::uint64_t pages = 0;
  std::ifstream{"/proc/self/statm"} >> pages;
  std::vector<void*> all;
  all.reserve(200'000);
  std::vector<std::unique_ptr<char[]>> others;  // hold all host memory except 1 MiB
  others.reserve(100'000);
  const rlimit now{pages * 4096 + 4 * mib, before.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_AS, &now), 0);
  try {
    while (others.size() < others.capacity()) others.push_back(std::make_unique_for_overwrite<char[]>(64 * kib));
  } catch (const std::bad_alloc&) {
    others.resize(others.size() - 16);
  }
  bool failed = false;
  try {
    while (all.size() < 200'000) all.push_back(allocator_->allocate(512));
  } catch (const out_of_memory&) {
  } catch (const std::bad_alloc&) {
    failed = true;
  }
  ASSERT_EQ(::setrlimit(RLIMIT_AS, &before), 0);
  EXPECT_TRUE(failed) << all.size();
  const status ok = allocator_->check(0);
  EXPECT_TRUE(ok) << ok.message();
  EXPECT_EQ(stats().live_blocks, all.size());
  all.push_back(allocator_->allocate(512));
  for (void* const p : all) allocator_->deallocate(p);
  EXPECT_EQ(stats().live_bytes, 0U);
}
#endif

// Each thread and stream uses the documented amount of memory, and returns it at its end.
TEST_F(CachedMemory, TheRecordsOfAThreadGoWithIt) {
  const auto thread_of_two_streams = [this] {
    fill_cache();
    fill_cache(second_);
  };
  fill_cache();
  const std::uint64_t before = stats().metadata_bytes;
  std::thread{thread_of_two_streams}.join();
  const std::uint64_t after_one = stats().metadata_bytes;
  EXPECT_LE(after_one, before + 64 * kib);
  for (int round = 0; round < 4; ++round) std::thread{thread_of_two_streams}.join();
  EXPECT_LE(stats().metadata_bytes, after_one + 64 * kib) << "no thread leaves anything behind";

  std::vector<std::thread> many;
  for (int i = 0; i < 8; ++i) many.emplace_back(thread_of_two_streams);
  for (std::thread& t : many) t.join();
  EXPECT_LE(stats().metadata_bytes, before + 256 * kib);
}

}  // namespace
}  // namespace gpumem::caches
