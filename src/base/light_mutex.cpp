#include "light_mutex.hpp"

#include <linux/futex.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <chrono>
#include <climits>
#include <ctime>

namespace gpumem {
namespace {

constexpr unsigned spins = 100;  // before a thread sleeps for what is held for less than that
constexpr std::chrono::milliseconds patience{1};
constexpr timespec longest_wait_for_starving{.tv_sec = 0, .tv_nsec = 1'000'000};

void sleep_while(const std::atomic<std::uint32_t>& word, std::uint32_t is, const timespec* at_most) noexcept {
  ::syscall(SYS_futex, &word, FUTEX_WAIT_PRIVATE, is, at_most);
}
void wake_sleepers(const std::atomic<std::uint32_t>& word, int how_many) noexcept {
  ::syscall(SYS_futex, &word, FUTEX_WAKE_PRIVATE, how_many);
}

static_assert(sizeof(std::atomic<std::uint32_t>) == sizeof(std::uint32_t), "a futex is 32 bits");

}  // namespace

// This thread has it by `held_`, as whoever changes `alone_` has. Where the first is another one, or has ended, it sees
// that before it says that it is inside, or has said so already.
void light_mutex::meet_first() noexcept {
  const char* const first = first_.load(std::memory_order_relaxed);
  if (first == nullptr || first == &mark_of_thread) return;
  alone_.store(false, std::memory_order_seq_cst);
  heavy_fence();
  while (first_inside_.load(std::memory_order_acquire)) ::sched_yield();
  if (first_.load(std::memory_order_relaxed) != &gone) return;  // asked now: it may have gone while it was waited for
  first_.store(nullptr, std::memory_order_relaxed);
  alone_.store(true, std::memory_order_relaxed);
}

void light_mutex::sleep_for_it() noexcept {
  for (unsigned i = 0; i < spins; ++i) {
    __builtin_ia32_pause();
    if (held_.load(std::memory_order_relaxed) == 0 && take()) return;
  }
  sleepers_.fetch_add(1, std::memory_order_seq_cst);
  heavy_fence();  // an unlock that did not see the count has made it free by now
  const auto since = std::chrono::steady_clock::now();
  bool starving = false;
  while (!take()) {
    sleep_while(held_, 1, nullptr);  // returns at once where it is free; woken for nothing, or by a signal, asks again
    if (!starving && std::chrono::steady_clock::now() - since > patience) {
      starving = true;
      starving_.fetch_add(1, std::memory_order_relaxed);
    }
  }
  if (starving) {
    starving_.fetch_sub(1, std::memory_order_relaxed);
    wake_sleepers(starving_, INT_MAX);
  }
  sleepers_.fetch_sub(1, std::memory_order_relaxed);
}

void light_mutex::wake() noexcept {
  wake_sleepers(held_, 1);
  if (const std::uint32_t waiting = starving_.load(std::memory_order_relaxed); waiting != 0) {
    sleep_while(starving_, waiting, &longest_wait_for_starving);
  }
}

}  // namespace gpumem
