/// A program with one allocator and filled thread caches, checked by the referee.
#pragma once

#include <gtest/gtest.h>

#include <atomic>
#include <barrier>
#include <functional>
#include <memory>
#include <string_view>
#include <thread>
#include <vector>

#include "bits.hpp"
#include "gpumem/sim_device.hpp"
#include "log.hpp"
#include "pooled_allocator.hpp"

namespace gpumem::caches {

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
inline constexpr bool sanitized = true;
#elif defined(__has_feature)
inline constexpr bool sanitized = __has_feature(address_sanitizer) || __has_feature(thread_sanitizer);
#else
inline constexpr bool sanitized = false;
#endif

/// Takes all memory of the device at once (`grab_all`), which leaves caches the most room.
class GPUMEM_HIDDEN cached_program : public ::testing::Test {
 protected:
  void SetUp() override {
    former_ = set_log_sink([](std::string_view) {});
    open("grab_all");
  }
  void TearDown() override {
    if (allocator_) {
      for (const logical_device& d : allocator_->devices()) {
        EXPECT_TRUE(allocator_->check(d.ordinal).ok()) << allocator_->check(d.ordinal).message();
      }
    }
    EXPECT_EQ(device_.hazard_count(), 0U) << device_.hazards().front().to_string();
    allocator_.reset();
    EXPECT_EQ(device_.used_bytes(), 0U);
    static_cast<void>(set_log_sink(former_));
  }

  void open(const settings& with) {
    allocator_.reset();
    device* const devices[] = {&device_};
    auto opened = pooled_allocator::open(devices, with);
    ASSERT_TRUE(opened.ok()) << opened.why().message();
    allocator_ = *std::move(opened);
    if (calm_) calm(*allocator_);
  }
  /// Reaches a peak that hardly any test exceeds, then allocates and frees so often that caches keep blocks of every
  /// size (src/cache/retention.hpp). Runs in a thread that ends, so that its cache holds nothing.
  static void calm(allocator& of) {
    std::thread{[&of] {
      for (const logical_device& d : of.devices()) {
        for (int turn = 0; turn < 600; ++turn) {
          // Never the same size twice: the cache would serve it instead of the heap.
          static std::atomic<std::size_t> sizes{0};
          const std::size_t bytes = 32 * mib - ++sizes % 30'000 * 512;
          const result<void*> got = of.try_allocate({.bytes = bytes, .device = d.ordinal});
          ASSERT_TRUE(got.ok()) << got.why().message();
          ASSERT_TRUE(of.try_deallocate(*got).ok());
        }
      }
    }}.join();
  }
  void open(std::string_view policy, bool thread_cache = true) {
    settings s;
    ASSERT_TRUE(s.set("policy", policy).ok());
    ASSERT_TRUE(s.set("limit", "256MiB").ok());
    if (policy == "multi_pool") {
      ASSERT_TRUE(s.set("pools", "256MiB").ok());
    }
    s.thread_cache = thread_cache;
    s.reuse = stream_reuse::device;  // a second stream then finds memory, so that the pool is not short
    open(s);
  }

  void* take(std::size_t bytes, stream_ref s = {}) {
    const result<void*> got = allocator_->try_allocate({.bytes = bytes, .stream = s});
    EXPECT_TRUE(got.ok()) << got.why().message();
    if (!got.ok()) return nullptr;
    device_.handed_out(reinterpret_cast<std::uintptr_t>(*got), bytes, s);
    return *got;
  }
  void give(void* p, const free_args& stated = {}) {
    device_.given_back(reinterpret_cast<std::uintptr_t>(p));
    const status freed = allocator_->try_deallocate(p, stated);
    EXPECT_TRUE(freed.ok()) << freed.message();
  }
  /// Takes and frees blocks of many sizes, so that this thread's cache holds some of each.
  void fill_cache(stream_ref s = {}) {
    for (const std::size_t bytes : {512UL, 1024UL, 4096UL, 40'000UL, 100'000UL, 300'000UL}) {
      std::vector<void*> blocks;
      for (int k = 0; k < 12; ++k) blocks.push_back(take(bytes, s));
      for (void* p : blocks) give(p);
    }
  }
  [[nodiscard]] statistics stats() const { return *allocator_->stats(0); }
  [[nodiscard]] std::uint64_t in_caches() const { return stats().thread_cached_bytes; }

  sim_device device_{{.capacity_bytes = gib}};
  std::unique_ptr<pooled_allocator> allocator_;
  bool calm_ = true;

 private:
  log_sink former_;
};

/// A thread that runs a function and then waits, with its cache unchanged, until this object is destroyed.
class parked_thread {
 public:
  explicit parked_thread(const std::function<void()>& does)
      : thread_{[this, does] {
          does();
          step_.arrive_and_wait();
          step_.arrive_and_wait();
        }} {
    step_.arrive_and_wait();
  }
  ~parked_thread() { end(); }
  parked_thread(const parked_thread&) = delete;
  parked_thread& operator=(const parked_thread&) = delete;
  void end() {
    if (!thread_.joinable()) return;
    step_.arrive_and_wait();
    thread_.join();
  }

 private:
  std::barrier<> step_{2};
  std::thread thread_;
};

}  // namespace gpumem::caches
