#include "light_mutex.hpp"

#include <linux/futex.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace gpumem {
namespace {

constexpr unsigned spins = 100;  // before a thread sleeps for what is held for less than that

static_assert(sizeof(std::atomic<std::uint32_t>) == sizeof(std::uint32_t), "a futex is 32 bits");

}  // namespace

void light_mutex::enter_as_first_or_second() noexcept {
  if (!take()) sleep_for_it();
  if (!alone_.load(std::memory_order_relaxed)) return;
  if (owner_.load(std::memory_order_relaxed) == nullptr) {
    owner_.store(&mark_of_thread, std::memory_order_relaxed);
    return;
  }
  // The owner sees this before it says that it is inside, or has said so already.
  alone_.store(false, std::memory_order_seq_cst);
  heavy_fence();
  while (owner_inside_.load(std::memory_order_acquire)) ::sched_yield();
}

void light_mutex::sleep_for_it() noexcept {
  for (unsigned i = 0; i < spins; ++i) {
    __builtin_ia32_pause();
    if (held_.load(std::memory_order_relaxed) == 0 && take()) return;
  }
  sleepers_.fetch_add(1, std::memory_order_seq_cst);
  heavy_fence();  // an unlock that did not see the count has made it free by now
  // Returns at once where it is free; woken for nothing, or by a signal, it asks again.
  while (!take()) ::syscall(SYS_futex, &held_, FUTEX_WAIT_PRIVATE, 1, nullptr);
  sleepers_.fetch_sub(1, std::memory_order_relaxed);
}

void light_mutex::wake() noexcept { ::syscall(SYS_futex, &held_, FUTEX_WAKE_PRIVATE, 1); }

}  // namespace gpumem
