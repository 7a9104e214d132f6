#include "light_mutex.hpp"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "meeting.hpp"

namespace gpumem {
namespace {

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr int scale = 1;
#elif defined(__has_feature)
constexpr int scale = __has_feature(address_sanitizer) || __has_feature(thread_sanitizer) ? 1 : 10;
#else
constexpr int scale = 10;
#endif

void pass_time(int turns) {
  for (; turns > 0; --turns) std::atomic_signal_fence(std::memory_order_seq_cst);
}

void be_first(light_mutex& m) {
  const std::lock_guard lock{m};
  m.be_first();
}

/// What two that are inside at once would spoil.
class guarded_counter {
 public:
  void add(light_mutex& by, int stay = 0) {
    const std::lock_guard lock{by};
    add_inside(stay);
  }
  /// It is left to the first thread.
  void add_and_leave(light_mutex& by) {
    by.lock();
    add_inside(0);
    by.unlock_to(by.first());
  }
  /// By one that is not the first any more; whoever is next to say so may be.
  void add_and_go(light_mutex& by, int stay) {
    by.lock();
    by.be_nobody();
    add_inside(stay);
    if (by.first() == nullptr) {
      by.unlock_to(nullptr);
    } else {
      by.unlock();
    }
  }
  [[nodiscard]] int count() const { return count_; }
  [[nodiscard]] bool together() const { return together_; }

 private:
  void add_inside(int stay) {
    together_ |= inside_.exchange(true, std::memory_order_relaxed);
    ++count_;
    pass_time(stay);
    inside_.store(false, std::memory_order_relaxed);
  }

  std::atomic<bool> inside_{false};
  bool together_ = false;
  int count_ = 0;
};

TEST(LightMutex, StaysItsFirstThreadsWhileNoOtherComes) {
  light_mutex m;
  guarded_counter c;
  EXPECT_EQ(m.first(), nullptr);
  be_first(m);
  EXPECT_EQ(m.first(), &mark_of_thread);
  for (int i = 0; i < 1000; ++i) {
    c.add(m);
    EXPECT_EQ(m.alone(), asymmetric_fences());
  }
  EXPECT_EQ(c.count(), 1000);
}

TEST(LightMutex, ASecondThreadEndsThat) {
  light_mutex m;
  guarded_counter c;
  be_first(m);
  c.add(m);
  std::thread{[&] { c.add(m); }}.join();
  EXPECT_FALSE(m.alone());
  c.add(m);
  EXPECT_FALSE(m.alone());
  EXPECT_EQ(c.count(), 3);
}

TEST(LightMutex, IsTheFirstThreadsAgainWhereItIsLeftToIt) {
  light_mutex m;
  guarded_counter c;
  be_first(m);
  c.add(m);
  for (int round = 0; round < 10; ++round) {
    std::thread{[&] { c.add(m); }}.join();
    EXPECT_FALSE(m.alone());
    std::thread{[&] { c.add_and_leave(m); }}.join();
    for (int i = 0; i < 10; ++i) {
      EXPECT_EQ(m.alone(), asymmetric_fences());
      c.add(m);
    }
    c.add_and_leave(m);  // the first thread itself: nothing else than to unlock it
    EXPECT_EQ(m.alone(), asymmetric_fences());
  }
  EXPECT_EQ(c.count(), 1 + 10 * 13);
}

// The first goes in and out all the while, beside one that leaves it alone and one that does not.
TEST(LightMutex, LetsOneInWhileItIsLeftToTheFirst) {
  constexpr int turns = 20'000 * scale;
  light_mutex m;
  guarded_counter c;
  be_first(m);
  std::atomic<int> working{2};
  int turns_here = 0;
  const auto come_and_go = [&](int leaves_each, int pause) {
    for (int i = 0; i < turns; ++i) {
      if (i % leaves_each == 0) {
        c.add_and_leave(m);
      } else {
        c.add(m);
      }
      pass_time(i % pause);
    }
    --working;
  };
  std::thread one{come_and_go, 1, 300};
  std::thread another{come_and_go, 3, 4000};
  for (; working.load(std::memory_order_relaxed) != 0; ++turns_here) c.add(m, turns_here % 64 == 0 ? 2000 : 0);
  one.join();
  another.join();
  EXPECT_EQ(c.count(), 2 * turns + turns_here);
  EXPECT_FALSE(c.together());
}

// A mutex of its own for each round, since what is tried is how the second thread meets the first.
TEST(LightMutex, LetsOneInWhileASecondThreadComes) {
  constexpr int rounds = 200 * scale;
  constexpr int turns = 300;
  std::unique_ptr<light_mutex> m;
  std::unique_ptr<guarded_counter> c;
  meeting step;
  std::thread other{[&] {
    for (int round = 0; round < rounds; ++round) {
      step.wait();
      pass_time(round % turns * 4);
      for (int i = 0; i < turns / 4; ++i) c->add(*m);
      step.wait();
    }
  }};
  for (int round = 0; round < rounds; ++round) {
    m = std::make_unique<light_mutex>();
    c = std::make_unique<guarded_counter>();
    be_first(*m);
    step.wait();
    for (int i = 0; i < turns; ++i) c->add(*m, i % 16 == 0 ? 20'000 : 0);  // seldom, longer than a heavy fence
    step.wait();
    EXPECT_EQ(c->count(), turns + turns / 4) << round;
    EXPECT_FALSE(c->together()) << round;
  }
  other.join();
}

TEST(LightMutex, LetsOneInOfMany) {
  constexpr int turns = 2'000 * scale;
  light_mutex m;
  guarded_counter c;
  std::vector<std::thread> all;
  for (int k = 0; k < 4; ++k) {
    all.emplace_back([&] {
      be_first(m);
      for (int i = 0; i < turns; ++i) c.add(m);
    });
  }
  for (std::thread& each : all) each.join();
  EXPECT_EQ(c.count(), 4 * turns);
  EXPECT_FALSE(c.together());
}

// A thread that locks again at once, for longer than it takes to wake another one, would keep it out for as long as
// it goes on.
TEST(LightMutex, LetsInWhoHasSleptForLong) {
  using clock = std::chrono::steady_clock;
  light_mutex m;
  for (int round = 0; round < 5; ++round) {
    std::atomic<bool> holds{false};
    std::atomic<bool> got{false};
    std::thread other{[&] {
      while (!holds.load()) std::this_thread::yield();
      const std::lock_guard lock{m};
      got = true;
    }};
    const auto begin = clock::now();
    while (!got.load() && clock::now() - begin < std::chrono::seconds{20}) {
      const std::lock_guard lock{m};
      holds = true;
      for (const auto from = clock::now(); clock::now() - from < std::chrono::milliseconds{1};) pass_time(10);
    }
    EXPECT_TRUE(got.load()) << "kept out for 20 s";
    other.join();
  }
}

// Longer than anybody spins: they sleep, and each is woken.
TEST(LightMutex, WakesWhoSleepsForIt) {
  for (const bool shared_before : {false, true}) {
    light_mutex m;
    be_first(m);
    if (shared_before) std::thread{[&] { const std::lock_guard lock{m}; }}.join();
    std::atomic<int> in{0};
    m.lock();
    std::vector<std::thread> all;
    for (int k = 0; k < 3; ++k) {
      all.emplace_back([&] {
        const std::lock_guard lock{m};
        ++in;
      });
    }
    std::this_thread::sleep_for(std::chrono::milliseconds{20});
    EXPECT_EQ(in.load(), 0) << "it is locked";
    m.unlock();
    for (std::thread& each : all) each.join();
    EXPECT_EQ(in.load(), 3);
  }
}

TEST(LightMutex, ServesAConditionVariable) {
  light_mutex m;
  std::condition_variable_any changed;
  int turn = 0;
  const auto play = [&](int mine) {
    for (int i = 0; i < 200; ++i) {
      std::unique_lock lock{m};
      changed.wait(lock, [&] { return turn % 2 == mine; });
      ++turn;
      changed.notify_all();
    }
  };
  std::thread other{play, 1};
  play(0);
  other.join();
  EXPECT_EQ(turn, 400);
}

// The next thread may get the mark of one that has ended: then it is as good as the same.
TEST(LightMutex, OutlivesItsFirstThread) {
  light_mutex m;
  guarded_counter c;
  for (int k = 0; k < 20; ++k) {
    std::thread{[&] {
      be_first(m);
      c.add(m);
    }}.join();
  }
  c.add(m);
  EXPECT_EQ(c.count(), 21);
  EXPECT_FALSE(c.together());
}

TEST(LightMutex, IsTheNextThreadsWhenTheFirstHasEnded) {
  light_mutex m;
  guarded_counter c;
  for (int k = 0; k < 20; ++k) {
    std::thread{[&] {
      be_first(m);
      c.add(m);
      EXPECT_EQ(m.first(), &mark_of_thread);
      EXPECT_EQ(m.alone(), asymmetric_fences());
      const std::lock_guard lock{m};
      m.be_nobody();
    }}.join();
    EXPECT_EQ(m.first(), nullptr);
  }
  be_first(m);
  c.add(m);
  EXPECT_EQ(m.first(), &mark_of_thread);
  EXPECT_EQ(m.alone(), asymmetric_fences());
  EXPECT_EQ(c.count(), 21);
}

// Only who is inside as the first sees that another one waits for it to leave.
TEST(LightMutex, IsTheNextThreadsThoughItWaitedWhileTheFirstEnded) {
  if (!asymmetric_fences()) GTEST_SKIP() << "no membarrier here (or ThreadSanitizer), so no thread is ever alone";
  using clock = std::chrono::steady_clock;
  light_mutex m;
  be_first(m);
  m.lock();
  std::thread other{[&] {
    const std::lock_guard lock{m};
    m.be_first();
    EXPECT_EQ(m.first(), &mark_of_thread);
    EXPECT_TRUE(m.alone());
  }};
  const auto begin = clock::now();
  while (m.alone() && clock::now() - begin < std::chrono::seconds{20}) std::this_thread::yield();
  EXPECT_FALSE(m.alone()) << "the other one has not come for 20 s, or this one is not inside as the first";
  m.be_nobody();
  m.unlock();
  other.join();
}

// Each time the first of many is another one; while it goes, others come.
TEST(LightMutex, LetsOneInWhileTheFirstGoes) {
  constexpr int rounds = 2'000 * scale;
  light_mutex m;
  guarded_counter c;
  const auto come_and_go = [&](int pause) {
    for (int i = 0; i < rounds; ++i) {
      be_first(m);
      for (int k = 0; k < 20; ++k) c.add(m);
      c.add_and_go(m, i % pause);
    }
  };
  std::thread one{come_and_go, 500};
  std::thread another{come_and_go, 7000};
  one.join();
  another.join();
  EXPECT_EQ(c.count(), 2 * 21 * rounds);
  EXPECT_FALSE(c.together());
}

}  // namespace
}  // namespace gpumem
