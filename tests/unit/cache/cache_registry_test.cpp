#include "cache_registry.hpp"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <barrier>
#include <optional>
#include <thread>
#include <vector>

#include "fake_arena.hpp"

namespace gpumem {
namespace {

struct tested_caches {
  fake_arena behind;
  std::vector<thread_cache*> ended;
  cache_registry it;
  explicit tested_caches(cache_place at = {.allocator = 1'000'001, .device = 3})
      : it{behind.cache.fast(), at, [this](thread_cache& c) {
             ended.push_back(&c);
             it.remove(c);
           }} {}
};

void in_a_thread(const std::function<void()>& does) { std::thread{does}.join(); }

TEST(thread_caches, a_thread_has_one_and_it_stays_the_same) {
  tested_caches x;
  EXPECT_EQ(x.it.mine(), nullptr);
  thread_cache* const mine = x.it.make_mine();
  ASSERT_NE(mine, nullptr);
  EXPECT_EQ(x.it.make_mine(), mine);
  EXPECT_EQ(x.it.mine(), mine);
  EXPECT_EQ(x.it.all().size(), 1U);
  in_a_thread([&] {
    EXPECT_EQ(x.it.mine(), nullptr) << "another thread's is not this one's";
    EXPECT_NE(x.it.make_mine(), mine);
    EXPECT_EQ(x.it.all().size(), 2U);
  });
  EXPECT_EQ(x.ended.size(), 1U);
  EXPECT_EQ(x.it.all().size(), 1U);
  EXPECT_EQ(x.it.mine(), mine);
}

TEST(thread_caches, the_latest_is_known_by_its_numbers) {
  tested_caches x;
  thread_cache* const mine = x.it.make_mine();
  EXPECT_EQ(tls_last_cache.allocator, 1'000'001U);
  EXPECT_EQ(tls_last_cache.device, 3);
  EXPECT_EQ(tls_last_cache.cache, mine);
  EXPECT_EQ(tls_last_cache.fast, &x.behind.cache.fast());
}

TEST(thread_caches, several_pools_in_turn_each_find_their_own) {
  tested_caches a{{.allocator = 1'000'001, .device = 0}};
  tested_caches b{{.allocator = 1'000'001, .device = 1}};
  tested_caches c{{.allocator = 1'000'002, .device = 0}};
  thread_cache* const of_a = a.it.make_mine();
  thread_cache* const of_b = b.it.make_mine();
  thread_cache* const of_c = c.it.make_mine();
  for (int round = 0; round < 3; ++round) {
    EXPECT_EQ(a.it.mine(), of_a);
    EXPECT_EQ(tls_last_cache.device, 0);
    EXPECT_EQ(b.it.mine(), of_b);
    EXPECT_EQ(tls_last_cache.device, 1);
    EXPECT_EQ(c.it.mine(), of_c);
    EXPECT_EQ(tls_last_cache.allocator, 1'000'002U);
  }
}

TEST(thread_caches, a_thread_gives_back_every_cache_when_it_ends) {
  tested_caches a;
  tested_caches b;
  in_a_thread([&] {
    static_cast<void>(a.it.make_mine());
    static_cast<void>(b.it.make_mine());
    static_cast<void>(a.it.make_mine());
  });
  EXPECT_EQ(a.ended.size(), 1U);
  EXPECT_EQ(b.ended.size(), 1U);
  EXPECT_TRUE(a.it.all().empty());
}

TEST(thread_caches, a_pool_that_is_gone_is_not_told_of_a_threads_end) {
  std::optional<tested_caches> x{std::in_place};
  std::barrier step{2};
  std::thread t{[&] {
    static_cast<void>(x->it.make_mine());
    step.arrive_and_wait();  // made
    step.arrive_and_wait();  // gone
    tested_caches another;   // even at the first one's address, this thread has no cache of it
    EXPECT_EQ(another.it.mine(), nullptr);
    EXPECT_NE(another.it.make_mine(), nullptr);
  }};
  step.arrive_and_wait();
  x.reset();
  step.arrive_and_wait();
  t.join();
}

TEST(thread_caches, a_later_one_at_the_same_address_is_another_one) {
  std::optional<tested_caches> x{std::in_place};
  const auto* const where = &x->it;
  static_cast<void>(x->it.make_mine());
  for (int round = 0; round < 3; ++round) {
    x.emplace();
    ASSERT_EQ(&x->it, where);
    EXPECT_EQ(x->it.mine(), nullptr);
    ASSERT_NE(x->it.make_mine(), nullptr);
    EXPECT_EQ(x->it.all().size(), 1U);
  }
}

/// Destroyed after the thread's caches: thread-local objects are destroyed in reverse order of construction.
struct late_user {
  std::function<void()> does;
  late_user() = default;
  late_user(const late_user&) = delete;
  late_user& operator=(const late_user&) = delete;
  ~late_user() {
    if (does) does();
  }
};

TEST(thread_caches, a_thread_that_has_begun_to_end_gets_none) {
  tested_caches x;
  bool asked = false;
  in_a_thread([&] {
    thread_local late_user last;
    last.does = [&] {
      asked = true;
      EXPECT_EQ(x.it.mine(), nullptr);
      EXPECT_EQ(x.it.make_mine(), nullptr);
    };
    EXPECT_NE(x.it.make_mine(), nullptr);
  });
  EXPECT_TRUE(asked);
  EXPECT_EQ(x.ended.size(), 1U);
  EXPECT_TRUE(x.it.all().empty());
}

TEST(thread_caches, a_stop_keeps_the_other_threads_out_and_not_its_own) {
  tested_caches x;
  thread_cache* const mine = x.it.make_mine();
  std::barrier step{2};
  std::thread t{[&] {
    thread_cache* const other = x.it.make_mine();
    step.arrive_and_wait();  // made
    step.arrive_and_wait();  // stopped
    EXPECT_FALSE(other->enter());
    step.arrive_and_wait();  // seen
    step.arrive_and_wait();  // the stop has ended
    EXPECT_TRUE(other->enter());
    other->leave();
  }};
  step.arrive_and_wait();
  {
    const cache_registry::stop_caches all{x.it};
    EXPECT_TRUE(mine->enter()) << "a thread's own is not stopped: whoever stops caches holds the pool's lock";
    mine->leave();
    step.arrive_and_wait();
    step.arrive_and_wait();
  }
  step.arrive_and_wait();
  t.join();
}

// An allocator without caches (a program's own, behind the same interface) has number 0, and so has a pool whose caches
// serve only under the lock. A look-up must not take one for the other.
TEST(thread_caches, a_place_without_an_allocator_is_nobodys) {
  tested_caches x{{.allocator = 0, .device = 0}};
  thread_cache* const mine = x.it.make_mine();
  EXPECT_NE(tls_last_cache.allocator, 0U);
  EXPECT_EQ(x.it.mine(), mine);
  EXPECT_NE(tls_last_cache.allocator, 0U);
}

// A forked child has the parent's list, and perhaps locks that the parent's other threads held.
TEST(thread_caches, a_fork_ends_even_where_a_thread_was_ending) {
  fake_arena behind;
  std::barrier step{2};
  bool first = true;
  cache_registry* self = nullptr;
  cache_registry x{behind.cache.fast(), {.allocator = 1'000'003, .device = 0}, [&](thread_cache& c) {
                     if (std::exchange(first, false)) {
                       step.arrive_and_wait();  // the thread is ending
                       step.arrive_and_wait();  // the fork is done
                     }
                     self->remove(c);
                   }};
  self = &x;
  static_cast<void>(x.make_mine());
  std::thread t{[&] { static_cast<void>(x.make_mine()); }};
  step.arrive_and_wait();
  const pid_t child = ::fork();
  if (child == 0) {
    ::alarm(20);
    tested_caches own;  // the child goes on with an allocator of its own
    const bool made = own.it.make_mine() != nullptr;
#if defined(__SANITIZE_ADDRESS__)
    ::_exit(made ? 0 : 1);  // LeakSanitizer would report memory of threads that the child does not have
#else
    ::exit(made ? 0 : 1);  // runs this thread's destructors
#endif
  }
  step.arrive_and_wait();
  t.join();
  ASSERT_GT(child, 0);
  int state = 0;
  ASSERT_EQ(::waitpid(child, &state, 0), child);
  EXPECT_TRUE(WIFEXITED(state)) << "ended by signal " << WTERMSIG(state);
  EXPECT_EQ(WEXITSTATUS(state), 0);
}

// A thread that returns its cache holds a lock, and does not exist in the child.
TEST(thread_caches, a_forked_child_closes_them_whatever_other_threads_did) {
  fake_arena behind;
  std::atomic<bool> ending{false};
  std::atomic<bool> forked{false};
  std::optional<cache_registry> caches;
  caches.emplace(behind.cache.fast(), cache_place{.allocator = 1'000'001, .device = 3}, [&](thread_cache& of) {
    ending = true;
    while (!forked) std::this_thread::yield();
    caches->remove(of);
  });
  std::thread ends{[&] { caches->make_mine(); }};
  while (!ending) std::this_thread::yield();
  const pid_t child = ::fork();
  if (child == 0) {
    ::alarm(60);
    caches->close();
    ::_exit(0);
  }
  forked = true;
  ends.join();
  int ended = -1;
  ASSERT_EQ(::waitpid(child, &ended, 0), child);
  EXPECT_TRUE(WIFEXITED(ended)) << "it waits for a thread that is not there";
}

}  // namespace
}  // namespace gpumem
