#include "asymmetric_fence.hpp"

#include <linux/membarrier.h>
#include <sys/syscall.h>
#include <unistd.h>

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
  // The process is registered, and forks inherit that, so the call cannot fail.
  if (asymmetric_fences()) static_cast<void>(membarrier(MEMBARRIER_CMD_PRIVATE_EXPEDITED));
}

}  // namespace gpumem
