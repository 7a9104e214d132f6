// A mutex with Clang's thread-safety annotations (-Wthread-safety). Code must hold the mutex to access data that is
// GUARDED_BY it, and to call a function that REQUIRES it. Other compilers ignore the annotations.
// https://clang.llvm.org/docs/ThreadSafetyAnalysis.html
#pragma once

#include <mutex>

#ifdef __clang__
#define GPUMEM_CAPABILITY __attribute__((capability("mutex")))
#define GPUMEM_SCOPED __attribute__((scoped_lockable))
#define GPUMEM_GUARDED_BY(m) __attribute__((guarded_by(m)))
#define GPUMEM_REQUIRES(m) __attribute__((requires_capability(m)))
#define GPUMEM_ACQUIRE(...) __attribute__((acquire_capability(__VA_ARGS__)))
#define GPUMEM_RELEASE(...) __attribute__((release_capability(__VA_ARGS__)))
#define GPUMEM_NOT_CHECKED __attribute__((no_thread_safety_analysis))
#else
#define GPUMEM_CAPABILITY
#define GPUMEM_SCOPED
#define GPUMEM_GUARDED_BY(m)
#define GPUMEM_REQUIRES(m)
#define GPUMEM_ACQUIRE(...)
#define GPUMEM_RELEASE(...)
#define GPUMEM_NOT_CHECKED
#endif

namespace gpumem {

class GPUMEM_CAPABILITY checked_mutex : public std::mutex {
 public:
  void lock() GPUMEM_ACQUIRE() { std::mutex::lock(); }
  void unlock() GPUMEM_RELEASE() { std::mutex::unlock(); }
};

/// Locks for its scope.
class GPUMEM_SCOPED mutex_lock {
 public:
  explicit mutex_lock(checked_mutex& mutex) GPUMEM_ACQUIRE(mutex) : mutex_{mutex} { mutex_.lock(); }
  ~mutex_lock() GPUMEM_RELEASE() { mutex_.unlock(); }
  mutex_lock& operator=(mutex_lock&&) = delete;

 private:
  checked_mutex& mutex_;
};

}  // namespace gpumem
