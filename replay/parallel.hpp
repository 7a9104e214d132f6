/// Independent tasks on several threads.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <mutex>
#include <thread>
#include <vector>

#include "gpumem/status.hpp"

namespace gpumem::bench {

/// Calls `task(0)` to `task(count - 1)`, each once, on up to `jobs` threads, in ascending order. After an error no
/// further task begins. Returns the error with the lowest number.
template <typename function>
status run_parallel(std::size_t count, unsigned jobs, const function& task) {
  std::atomic<std::size_t> next{0};
  std::mutex mutex;
  status failed;
  std::size_t failed_at = count;
  const auto work = [&] {
    for (std::size_t i = next.fetch_add(1); i < count; i = next.fetch_add(1)) {
      status went = task(i);
      if (went.ok()) continue;
      next.store(count);
      const std::lock_guard lock{mutex};
      if (i < failed_at) {
        failed = std::move(went);
        failed_at = i;
      }
    }
  };
  std::vector<std::jthread> threads;
  for (std::size_t i = 1; i < std::min<std::size_t>(jobs, count); ++i) threads.emplace_back(work);
  work();
  threads.clear();  // joins
  return failed;
}

}  // namespace gpumem::bench
