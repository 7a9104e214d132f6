/// Numbers threads for recordings: from 1, in the order of their first calls.
#pragma once

#include <atomic>
#include <cstdint>

namespace gpumem {

[[nodiscard]] inline std::uint32_t thread_number() noexcept {
  static std::atomic<std::uint32_t> threads{0};
  thread_local const std::uint32_t number = threads.fetch_add(1, std::memory_order_relaxed) + 1;
  return number;
}

}  // namespace gpumem
