// The standard's containers and pools over pinned host memory, also while a copy is in flight.
#include "gpumem/adapters/pmr.hpp"

#include <gtest/gtest.h>

#include <map>
#include <numeric>
#include <string>
#include <thread>
#include <vector>

#include "gpumem/sim_device.hpp"

namespace gpumem {
namespace {

constexpr std::uint64_t mib = 1 << 20;

class Pmr : public ::testing::Test {
 protected:
  void SetUp() override {
    auto opened = pinned_resource::open(gpu_, 64 * mib);
    ASSERT_TRUE(opened) << opened.why().message();
    pinned_ = *std::move(opened);
  }
  statistics now() { return *pinned_->pool().stats(0); }

  sim_device gpu_{{.capacity_bytes = std::uint64_t{1} << 30, .host_memory = true}};
  std::unique_ptr<pinned_resource> pinned_;
};

TEST_F(Pmr, ServesContainers) {
  {
    std::pmr::vector<int> v{pinned_.get()};
    for (int i = 0; i < 100'000; ++i) v.push_back(i);
    EXPECT_EQ(std::accumulate(v.begin(), v.end(), 0LL), 4'999'950'000LL);
    std::pmr::unsynchronized_pool_resource small{pinned_.get()};
    std::pmr::map<int, std::pmr::string> names{&small};
    for (int i = 0; i < 1000; ++i) names.emplace(i, "a name that is too long for the string itself");
    EXPECT_EQ(names.at(999).size(), 45U);
    EXPECT_LT(now().live_blocks, 100U) << "the small ones share blocks";
  }
  EXPECT_EQ(now().live_blocks, 0U);
  EXPECT_EQ(now().misuses, 0U);
  EXPECT_GT(gpu_.calls()[static_cast<std::size_t>(device_call::alloc_host)], 0U);
  EXPECT_EQ(gpu_.used_bytes(), 0U) << "nothing of it is the GPU's";
  EXPECT_TRUE(pinned_->pool().check(0));
}

TEST_F(Pmr, ReusesBlocksWithoutCopiesAtOnce) {
  void* const first = pinned_->allocate(3 * mib);
  pinned_->deallocate(first, 3 * mib);
  void* const second = pinned_->allocate(3 * mib);
  EXPECT_EQ(first, second);
  pinned_->deallocate(second, 3 * mib);
}

TEST_F(Pmr, ABlockThatACopyStillReadsIsNotGivenOut) {
  const stream_ref s = gpu_.create_stream();
  void* const first = pinned_->allocate(3 * mib);
  gpu_.enqueue(s, 1'000'000'000);
  ASSERT_TRUE(pinned_->also_used_on(static_cast<char*>(first) + 100, s));
  pinned_->deallocate(first, 3 * mib);
  void* const second = pinned_->allocate(3 * mib);
  EXPECT_LT(gpu_.now_ns(), 1'000'000'000U) << "nobody waited";
  EXPECT_NE(first, second);
  gpu_.advance_to(2'000'000'000);
  pinned_->deallocate(second, 3 * mib);
  EXPECT_TRUE(pinned_->pool().check(0));
}

TEST_F(Pmr, TheHostWaitsForTheCopyWhereThereIsNoOtherMemory) {
  const stream_ref s = gpu_.create_stream();
  void* const all = pinned_->allocate(64 * mib);
  gpu_.enqueue(s, 1'000'000'000);
  ASSERT_TRUE(pinned_->also_used_on(all, s));
  pinned_->deallocate(all, 64 * mib);
  void* const again = pinned_->allocate(64 * mib);
  EXPECT_GE(gpu_.now_ns(), 1'000'000'000U) << "the copy was still reading";
  EXPECT_EQ(again, all);
  pinned_->deallocate(again, 64 * mib);
}

TEST_F(Pmr, TheLegacyStreamIsNotTheHost) {
  void* const all = pinned_->allocate(64 * mib);
  gpu_.enqueue({}, 1'000'000'000);
  ASSERT_TRUE(pinned_->also_used_on(all, {}));
  pinned_->deallocate(all, 64 * mib);
  void* const again = pinned_->allocate(64 * mib);
  EXPECT_GE(gpu_.now_ns(), 1'000'000'000U);
  pinned_->deallocate(again, 64 * mib);
}

TEST_F(Pmr, AsksForMoreThanThereIs) {
  EXPECT_THROW(static_cast<void>(pinned_->allocate(65 * mib)), out_of_memory);
  void* const nothing = pinned_->allocate(0);
  EXPECT_NE(nothing, nullptr);
  pinned_->deallocate(nothing, 0);
  void* const aligned = pinned_->allocate(10, 4096);
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(aligned) % 4096, 0U);
  pinned_->deallocate(aligned, 10, 4096);
  EXPECT_EQ(now().misuses, 0U);
}

TEST_F(Pmr, TakesSettings) {
  settings with;
  ASSERT_TRUE(with.set("policy", "grab_all"));
  ASSERT_TRUE(with.set("limit", "32MiB"));
  const auto opened = pinned_resource::open(gpu_, 64 * mib, with);
  ASSERT_TRUE(opened) << opened.why().message();
  (*opened)->deallocate((*opened)->allocate(1), 1);
  EXPECT_EQ((*opened)->pool().stats(0)->reserved_bytes, 32 * mib);
  EXPECT_FALSE((*opened)->is_equal(*pinned_));
  ASSERT_TRUE(with.set("limit", "128MiB"));
  EXPECT_EQ(pinned_resource::open(gpu_, 64 * mib, with).code(), errc::bad_setting) << "more than the capacity";
}

TEST_F(Pmr, ServesThreads) {
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([this, t] {
      for (int i = 1; i < 100; ++i) {
        std::pmr::vector<int> v(static_cast<std::size_t>(i * 100), t, pinned_.get());
        for (const int x : v) ASSERT_EQ(x, t);
      }
    });
  }
  for (std::thread& t : threads) t.join();
  EXPECT_EQ(now().live_blocks, 0U);
  EXPECT_TRUE(pinned_->pool().check(0));
}

}  // namespace
}  // namespace gpumem
