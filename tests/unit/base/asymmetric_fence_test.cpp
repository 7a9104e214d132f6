#include "asymmetric_fence.hpp"

#include <gtest/gtest.h>
#include <linux/membarrier.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <thread>

namespace gpumem {
namespace {

TEST(AsymmetricFence, IsThereWhereTheKernelSaysSo) {
  const long offered = ::syscall(SYS_membarrier, MEMBARRIER_CMD_QUERY, 0, 0);
#if defined(__SANITIZE_THREAD__)
  EXPECT_FALSE(asymmetric_fences()) << "ThreadSanitizer cannot follow it";
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer)
  EXPECT_FALSE(asymmetric_fences()) << "ThreadSanitizer cannot follow it";
#else
  EXPECT_EQ(asymmetric_fences(), offered > 0 && (offered & MEMBARRIER_CMD_PRIVATE_EXPEDITED) != 0);
#endif
#else
  EXPECT_EQ(asymmetric_fences(), offered > 0 && (offered & MEMBARRIER_CMD_PRIVATE_EXPEDITED) != 0);
#endif
  EXPECT_EQ(asymmetric_fences(), asymmetric_fences()) << "the answer never changes";
  heavy_fence();  // harmless either way
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

// Dekker's entry protocol as a thread's cache uses it: never are both inside. Where the fences are not offered, both
// sides do what the header says.
TEST(AsymmetricFence, KeepsTwoThreadsApart) {
  const bool cheap = asymmetric_fences();
  std::atomic<bool> inside{false};
  std::atomic<bool> claimed{false};
  std::atomic<bool> stop{false};
  std::uint64_t guarded = 0;  // plain: written by whoever is alone
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
