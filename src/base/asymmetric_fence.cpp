#include "asymmetric_fence.hpp"

#include <linux/membarrier.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>

namespace gpumem {
namespace {

#if defined(__SANITIZE_THREAD__)
constexpr bool followed = false;
#elif defined(__has_feature)
constexpr bool followed = !__has_feature(thread_sanitizer);
#else
constexpr bool followed = true;
#endif

bool membarrier(int command) noexcept { return ::syscall(SYS_membarrier, command, 0, 0) == 0; }

}  // namespace

bool asymmetric_fences() noexcept {
  static const bool offered = followed && membarrier(MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED);
  return offered;
}

void heavy_fence() noexcept {
  if (!asymmetric_fences() || membarrier(MEMBARRIER_CMD_PRIVATE_EXPEDITED)) return;
  // The process is registered, and forked children inherit that. Without the fence two threads could get the same
  // memory.
  std::fputs(
      "gpumem: membarrier fails, which it did not before: a system-call filter was installed after the first "
      "allocation; "
      "install it earlier, allow membarrier, or set GPUMEM_THREAD_CACHE=0\n",
      stderr);
  std::abort();
}

}  // namespace gpumem
