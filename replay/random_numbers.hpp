/// Seeded random numbers, identical everywhere: the distributions of <random> differ between standard libraries.
#pragma once

#include <cstdint>

namespace gpumem::bench {

/// SplitMix64 (Steele, Lea and Flood, OOPSLA 2014).
class random_numbers {
 public:
  explicit random_numbers(std::uint64_t seed) : state_{seed} {}

  std::uint64_t next() {
    std::uint64_t z = state_ += 0x9e3779b97f4a7c15;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
    z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
    return z ^ (z >> 31);
  }
  /// In [0, 1).
  double share() { return static_cast<double>(next() >> 11) * 0x1p-53; }
  /// In [0, end).
  std::uint64_t below(std::uint64_t end) { return next() % end; }

 private:
  std::uint64_t state_;
};

}  // namespace gpumem::bench
