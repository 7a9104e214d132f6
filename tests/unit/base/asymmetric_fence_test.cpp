#include "asymmetric_fence.hpp"

#include <gtest/gtest.h>
#include <linux/filter.h>
#include <linux/membarrier.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <cstddef>
#include <thread>

namespace gpumem {
namespace {

// ThreadSanitizer cannot follow the fence, so it must not be used there.
#if defined(__SANITIZE_THREAD__)
constexpr bool followed = false;
#elif defined(__has_feature)
constexpr bool followed = !__has_feature(thread_sanitizer);
#else
constexpr bool followed = true;
#endif

TEST(AsymmetricFence, IsThereWhereTheKernelSaysSo) {
  const long offered = ::syscall(SYS_membarrier, MEMBARRIER_CMD_QUERY, 0, 0);
  const bool usable = offered > 0 && (offered & MEMBARRIER_CMD_PRIVATE_EXPEDITED) != 0;
  EXPECT_EQ(asymmetric_fences(), followed && usable);
  EXPECT_EQ(asymmetric_fences(), followed && usable) << "the answer never changes";
  heavy_fence();  // harmless either way
}

/// From here on this process's membarrier(2) fails, as in a sandbox or on an old kernel. False where that is forbidden.
bool forbid_membarrier() {
  std::array filter{
      sock_filter{BPF_LD | BPF_W | BPF_ABS, 0, 0, offsetof(seccomp_data, nr)},
      sock_filter{BPF_JMP | BPF_JEQ | BPF_K, 0, 1, SYS_membarrier},
      sock_filter{BPF_RET | BPF_K, 0, 0, SECCOMP_RET_ERRNO | EPERM},
      sock_filter{BPF_RET | BPF_K, 0, 0, SECCOMP_RET_ALLOW},
  };
  const sock_fprog program{.len = filter.size(), .filter = filter.data()};
  return ::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 && ::prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0;
}

// In a new process that has not yet registered for membarrier(2).
TEST(AsymmetricFenceDeathTest, SaysSoWhereTheKernelRefusesIt) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(
      {
        if (!forbid_membarrier()) ::_exit(0);
        const bool refused = !asymmetric_fences();
        heavy_fence();  // nothing
        ::_exit(refused && !asymmetric_fences() ? 0 : 1);
      },
      ::testing::ExitedWithCode(0), "");
}

TEST(AsymmetricFence, AForkInheritsIt) {
  const bool here = asymmetric_fences();
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    const bool same = asymmetric_fences() == here;
    const bool works = !here || ::syscall(SYS_membarrier, MEMBARRIER_CMD_PRIVATE_EXPEDITED, 0, 0) == 0;
    ::_exit(same && works ? 0 : 1);
  }
  int state = 0;
  ASSERT_EQ(::waitpid(child, &state, 0), child);
  EXPECT_TRUE(WIFEXITED(state) && WEXITSTATUS(state) == 0);
}

// Dekker's entry protocol as a thread's cache uses it: both threads are never inside at once. If the fences are not
// available, both sides follow the header's instructions.
TEST(AsymmetricFence, KeepsTwoThreadsApart) {
  const bool cheap = asymmetric_fences();
  std::atomic<bool> inside{false};
  std::atomic<bool> claimed{false};
  std::atomic<bool> stop{false};
  std::uint64_t guarded = 0;  // not atomic: only the thread inside writes it
  std::uint64_t entered = 0;
  std::thread frequent{[&] {
    while (!stop.load(std::memory_order_relaxed)) {
      if (cheap) {
        inside.store(true, std::memory_order_relaxed);
        light_fence();
      } else {
        inside.exchange(true, std::memory_order_seq_cst);
      }
      if (!claimed.load(std::memory_order_seq_cst)) {
        ++guarded;
        ++entered;
      }
      inside.store(false, std::memory_order_release);
    }
  }};
  constexpr std::uint64_t rounds = 2000;
  for (std::uint64_t r = 0; r < rounds; ++r) {
    claimed.store(true, std::memory_order_seq_cst);
    heavy_fence();
    while (inside.load(std::memory_order_seq_cst)) std::this_thread::yield();
    ++guarded;
    claimed.store(false, std::memory_order_release);
  }
  stop = true;
  frequent.join();
  EXPECT_EQ(guarded, entered + rounds) << "an update was lost: both were inside";
}

}  // namespace
}  // namespace gpumem
