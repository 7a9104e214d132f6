/// Seeded problems for the solvers' tests.
#pragma once

#include <random>
#include <utility>
#include <vector>

#include "problem.hpp"

namespace gpumem::plan {

/// Buffers with lives of any length within [0, 2 * count) and sizes that are multiples of `unit`.
inline problem random_problem(std::uint64_t seed, std::size_t count, std::uint64_t unit = 16) {
  std::mt19937_64 random{seed};
  problem made;
  for (std::size_t i = 0; i < count; ++i) {
    const std::uint64_t lower = random() % (2 * count);
    const std::uint64_t upper = lower + 1 + random() % (2 * count - lower);
    made.push_back({.id = i, .lower = lower, .upper = upper, .size = unit * (1 + random() % 64)});
  }
  return made;
}

/// A problem that is known to fit into `capacity` without a byte to spare: a rectangle of `capacity` by `time`, cut in
/// two at random until there are `count` pieces.
inline problem cut_rectangle(std::uint64_t seed, std::size_t count, std::uint64_t capacity, std::uint64_t time) {
  std::mt19937_64 random{seed};
  problem pieces{{.id = 0, .lower = 0, .upper = time, .size = capacity}};
  while (pieces.size() < count) {
    buffer& one = pieces[random() % pieces.size()];
    buffer other = one;
    if (random() % 2 == 0 && one.size > 1) {
      one.size = 1 + random() % (one.size - 1);
      other.size -= one.size;
    } else if (one.upper - one.lower > 1) {
      one.upper = one.lower + 1 + random() % (one.upper - one.lower - 1);
      other.lower = one.upper;
    } else {
      continue;
    }
    other.id = pieces.size();
    pieces.push_back(other);
  }
  return pieces;
}

}  // namespace gpumem::plan
