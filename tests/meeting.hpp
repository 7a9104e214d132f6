#pragma once

#include <atomic>
#include <thread>

namespace gpumem {

/// Two threads wait for each other by spinning: a sleeping one would arrive too late for the race under test.
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
