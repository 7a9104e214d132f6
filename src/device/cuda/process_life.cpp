#include "process_life.hpp"

#include <pthread.h>

#include <atomic>
#include <cstdlib>
#include <vector>

#include "checked_mutex.hpp"
#include "cuda_device.hpp"

namespace gpumem {
namespace {

/// Never destroyed: devices may be closed by static destructors.
struct open_devices {
  checked_mutex mutex;
  std::vector<cuda_device*> devices GPUMEM_GUARDED_BY(mutex);
  std::atomic<bool> exiting{false};
};
open_devices& all() {
  static auto* const only = new open_devices;
  return *only;
}

// Holds the lock across the fork, so that the child does not inherit it locked by a thread that exists only in the
// parent.
GPUMEM_NOT_CHECKED void before_fork() { all().mutex.lock(); }
GPUMEM_NOT_CHECKED void after_fork_in_parent() { all().mutex.unlock(); }
GPUMEM_NOT_CHECKED void after_fork_in_child() {
  for (cuda_device* d : all().devices) d->forked();
  all().mutex.unlock();
}

}  // namespace

void remember(cuda_device* device) {
  static const bool registered = [] {
    static_cast<void>(std::atexit([] { all().exiting.store(true, std::memory_order_relaxed); }));
    return pthread_atfork(before_fork, after_fork_in_parent, after_fork_in_child) == 0;
  }();
  static_cast<void>(registered);
  const mutex_lock lock{all().mutex};
  all().devices.push_back(device);
}

void forget(cuda_device* device) {
  const mutex_lock lock{all().mutex};
  std::erase(all().devices, device);
}

bool process_exiting() noexcept { return all().exiting.load(std::memory_order_relaxed); }

}  // namespace gpumem
