/// Properties of real cards that programs read and size their memory by.
///
/// No CUDA header. The simulated driver reports these properties; `gpumem simulate --card list` prints them.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

namespace gpumem::simcuda {

struct card_profile {
  std::string_view key;
  std::string_view name;
  std::uint64_t memory_mib = 0;
  int compute_major = 0;
  int compute_minor = 0;
  int multiprocessors = 0;
  int threads_per_multiprocessor = 0;
  int shared_kib_per_multiprocessor = 0;
  int l2_kib = 0;

  [[nodiscard]] constexpr std::uint64_t bytes() const noexcept { return memory_mib << 20; }
  /// The compute capability of the code in common binaries that this card runs: a card of 8.9 runs code for 8.6.
  [[nodiscard]] constexpr int code_version() const noexcept {
    const int own = compute_major * 10 + compute_minor;
    return own == 89 ? 86 : own;
  }
  /// The most shared memory of a thread block that opts in (cudaDevAttrMaxSharedMemoryPerBlockOptin).
  [[nodiscard]] constexpr int shared_bytes_opt_in() const noexcept {
    return (shared_kib_per_multiprocessor - (compute_major >= 8 ? 1 : 0)) * 1024;
  }
};

std::span<const card_profile> card_profiles() noexcept;
/// Returns null if no card has that name.
const card_profile* find_card(std::string_view key) noexcept;
/// Returns the card to use if only the memory is given: the first of compute capability 9.0.
const card_profile& default_card() noexcept;

}  // namespace gpumem::simcuda
