/// Numbers that are the same for the same seed with every compiler and standard library.
#pragma once

#include <cstdint>

namespace gpumem::model {

/// SplitMix64 (Steele, Lea, Flood 2014).
class random_numbers {
 public:
  explicit random_numbers(std::uint64_t seed) noexcept : state_{seed} {}

  std::uint64_t next() noexcept {
    std::uint64_t z = (state_ += 0x9e3779b97f4a7c15U);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9U;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebU;
    return z ^ (z >> 31);
  }

  /// Less than `end`, which is not 0. The bias of the remainder does not matter here.
  std::uint64_t below(std::uint64_t end) noexcept { return next() % end; }

 private:
  std::uint64_t state_;
};

}  // namespace gpumem::model
