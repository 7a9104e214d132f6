/// A short program over one allocator that uses every function of an allocator. Run once for each n, it meets the
/// failure that a test injects at the n-th step.
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <csignal>
#include <memory>
#include <vector>

#include "bits.hpp"
#include "gpumem/allocator.hpp"
#include "gpumem/sim_device.hpp"
#include "host_memory.hpp"
#include "log.hpp"
#include "watched_device.hpp"

namespace gpumem::throwing {

inline const status& why_of(const status& s) { return s; }
template <typename T>
const status& why_of(const result<T>& r) {
  return r.why();
}

/// Fails tests that hang: after so many seconds a signal ends the process.
class time_limit {
 public:
  explicit time_limit(unsigned seconds) {
    std::signal(SIGALRM, [](int) {
      constexpr char said[] = "the program hangs: a request waits for what nobody will give back\n";
      static_cast<void>(!::write(STDERR_FILENO, said, sizeof said - 1));
      ::_exit(1);
    });
    ::alarm(seconds);
  }
  ~time_limit() { ::alarm(0); }
  time_limit(const time_limit&) = delete;
  time_limit& operator=(const time_limit&) = delete;
};

class canned_program {
 public:
  explicit canned_program(const settings& with, const sim_config& card = {}) : sim_{card}, with_{with} {}
  ~canned_program() {
    open_.reset();
    EXPECT_EQ(sim_.hazard_count(), 0U) << sim_.hazards().front().to_string();
  }
  canned_program(const canned_program&) = delete;
  canned_program& operator=(const canned_program&) = delete;

  [[nodiscard]] watched_device& edge() noexcept { return edge_; }
  [[nodiscard]] sim_device& card() noexcept { return sim_; }
  [[nodiscard]] allocator& memory() noexcept { return *open_; }
  [[nodiscard]] bool broke() const noexcept { return host_memory::failed() || edge_.thrown(); }

  bool open() {
    device* const devices[] = {&edge_};
    auto opened = attempt([&] { return allocator::open(devices, with_); });
    if (opened) open_ = *std::move(opened);
    EXPECT_TRUE(opened.ok()) << opened.why().message();
    return opened.ok();
  }

  /// Makes the call, which should succeed. If it meets the injected failure, it may return `host_failure` or the
  /// failing device's status; everything must then be intact, and the same call must succeed.
  template <typename Call>
  auto attempt(const Call& call) -> decltype(call()) {
    const bool before = broke();
    auto answer = [&] {
      const host_memory::watched counted;
      return call();
    }();
    if (before || !broke()) return answer;
    expect_sound();
    if (answer.ok()) return answer;
    const status& why = why_of(answer);
    const bool of_device = edge_.thrown() && (why.code() == errc::out_of_memory || why.code() == errc::device_error);
    EXPECT_TRUE(why.code() == errc::host_failure || of_device) << to_string(why.code()) << ": " << why.message();
    return call();
  }

  /// Uses every function of an allocator; at the end nothing is live.
  void run() {
    if (!open()) return;
    const stream_ref second = sim_.create_stream();
    const stream_ref third = sim_.create_stream();
    for (int step = 0; step < 3; ++step) {
      small_blocks(second);
      large_blocks(second);
      shared_blocks(second, third);
      capture(second);
    }
    refused_request();
    figures();
    EXPECT_TRUE(attempt([&] { return open_->stream_release(third); }).ok());
    static_cast<void>(attempt([&] {
      static_cast<void>(open_->trim(0));
      return status{};
    }));
    const result<statistics> s = open_->stats(0);
    EXPECT_EQ(s->live_bytes, 0U);
    expect_sound();
  }
  /// So many blocks that every host table has to grow.
  void run_with_many_blocks(std::size_t blocks) {
    if (!open()) return;
    std::vector<void*> all(blocks);
    for (void*& p : all) p = take(512, {});
    for (void* const p : all) give(p);
    EXPECT_EQ(open_->stats(0)->live_bytes, 0U);
  }

 private:
  void* take(std::size_t bytes, stream_ref s) {
    const result<void*> got = attempt([&] { return open_->try_allocate({.bytes = bytes, .stream = s}); });
    EXPECT_TRUE(got.ok()) << bytes << " bytes: " << got.why().message();
    if (!got) return nullptr;
    sim_.handed_out(reinterpret_cast<address>(*got), bytes, s);
    sim_.enqueue_use(s, 50'000, reinterpret_cast<address>(*got), bytes);
    return *got;
  }
  void give(void* p, const free_args& stated = {}) {
    if (p == nullptr) return;
    sim_.given_back(reinterpret_cast<address>(p));
    const status freed = attempt([&] { return open_->try_deallocate(p, stated); });
    EXPECT_TRUE(freed.ok()) << freed.message();
  }
  void small_blocks(stream_ref second) {
    std::vector<void*> all;
    for (int round = 0; round < 3; ++round) {
      for (std::size_t k = 1; k <= 24; ++k) all.push_back(take(k * 700, k % 3 == 0 ? second : stream_ref{}));
      for (void* const p : all) give(p);
      all.clear();
    }
  }
  // A repeating step of large blocks, with a hole that can be filled only with pages from elsewhere.
  void large_blocks(stream_ref second) {
    void* const low = take(24 * mib, {});
    void* const between = take(20 * mib, {});
    void* const high = take(40 * mib, second);
    give(low);
    give(high);
    void* const wide = take(60 * mib, {});
    sim_.advance_by(200'000);
    void* const narrow = take(18 * mib, second);
    give(between);
    give(narrow);
    give(wide);
  }
  void shared_blocks(stream_ref second, stream_ref third) {
    void* const shared = take(6 * mib, {});
    EXPECT_TRUE(attempt([&] { return open_->record_use(shared, second); }).ok());
    EXPECT_TRUE(attempt([&] { return open_->record_use(shared, third); }).ok());
    sim_.enqueue_use(second, 80'000, reinterpret_cast<address>(shared), 512);
    sim_.enqueue_use(third, 80'000, reinterpret_cast<address>(shared), 512);
    give(shared);
    void* const other = take(6 * mib, third);
    give(other, {.stream = third, .bytes = {}, .device = {}});
    sim_.advance_by(200'000);
    give(take(6 * mib, second));
  }
  void capture(stream_ref s) {
    EXPECT_TRUE(attempt([&] { return open_->capture_begin(s); }).ok());
    void* const inside = take(3 * mib, s);
    give(inside);
    const result<graph_ref> left = attempt([&] { return open_->capture_end(s); });
    ASSERT_TRUE(left) << left.why().message();
    EXPECT_TRUE(attempt([&] { return open_->graph_release(*left); }).ok());
    sim_.advance_by(200'000);
  }
  // Cannot be served. If the host fails as well, either may be the answer, and the report may be missing.
  void refused_request() {
    const auto ask = [&](oom_report* report) {
      const host_memory::watched counted;
      return open_->try_allocate({.bytes = sim_.info().total_bytes + mib}, report);
    };
    const bool before = broke();
    oom_report report;
    const result<void*> refused = ask(&report);
    const bool met = !before && broke();
    EXPECT_TRUE(refused.code() == errc::out_of_memory || (met && refused.code() == errc::host_failure))
        << to_string(refused.code()) << ": " << refused.why().message();
    if (!met) {
      EXPECT_NE(report.cause, oom_cause::none);
      return;
    }
    expect_sound();
    EXPECT_EQ(ask(&report).code(), errc::out_of_memory);
    EXPECT_NE(report.cause, oom_cause::none);
  }
  void figures() {
    void* const p = take(4096, {});
    EXPECT_TRUE(attempt([&] { return open_->describe(p); }).ok());
    EXPECT_TRUE(attempt([&] { return open_->stats(0); }).ok());
    EXPECT_TRUE(attempt([&] { return open_->check(0); }).ok());
    EXPECT_TRUE(attempt([&] { return open_->set_limit(0, sim_.info().total_bytes / 2); }).ok());
    EXPECT_TRUE(attempt([&] { return open_->set_limit(0, sim_.info().total_bytes); }).ok());
    give(p);
  }

 public:
  void expect_sound() {
    if (open_ == nullptr) return;
    const status ok = open_->check(0);
    EXPECT_TRUE(ok) << ok.message();
    const result<statistics> s = open_->stats(0);
    ASSERT_TRUE(s);
    EXPECT_EQ(
        s->live_bytes + s->thread_cached_bytes + s->cached_bytes + s->fenced_bytes + s->idle_bytes + s->leaked_bytes,
        s->reserved_bytes);
    // If a device fails on one of several runs that it takes back, the runs after that one count as lost too.
    if (edge_.thrown()) {
      EXPECT_LE(sim_.used_bytes(), s->reserved_bytes);
    } else {
      EXPECT_EQ(sim_.used_bytes(), s->reserved_bytes);
    }
  }

 private:
  sim_device sim_;
  watched_device edge_{sim_};
  settings with_;
  std::unique_ptr<allocator> open_;
};

}  // namespace gpumem::throwing
