#pragma once

#include <atomic>
#include <thread>

namespace gpumem {

/// Where two threads wait for each other, awake: one that was asleep would come too late for what is tried.
class meeting {
 public:
  void wait() {
    const int all = arrived_.fetch_add(1) / 2 * 2 + 2;
    while (arrived_.load() < all) std::this_thread::yield();
  }

 private:
  std::atomic<int> arrived_{0};
};

}  // namespace gpumem
