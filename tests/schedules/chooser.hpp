/// Decides which thread continues at a point: at random, by priorities, or by a list of turns.
#pragma once

#include <cstddef>
#include <cstdint>
#include <random>
#include <vector>

namespace gpumem::schedules {

using generator = std::mt19937_64;

/// `thread` is at its point number `point` of `operation`, and `next` goes on. Names of points survive the removal of
/// other operations.
struct turn {
  std::uint32_t thread = 0;
  std::uint32_t operation = 0;
  std::uint32_t point = 0;
  std::uint32_t next = 0;
};

/// A thread at a point.
struct position {
  std::uint32_t thread = 0;
  std::uint32_t operation = 0;
  std::uint32_t point = 0;
  bool can_go_on = true;  ///< false if the thread waits or has finished
  bool yields = false;    ///< true if the thread prefers another one
};

class chooser {
 public:
  /// Each point changes threads with a probability of `percent`.
  static chooser at_random(std::uint64_t seed, unsigned percent);
  /// Burckhardt, Kothari, Musuvathi and Nagarakatte, "A randomized scheduler with probabilistic guarantees of finding
  /// bugs", ASPLOS 2010: the thread of the highest priority goes on; at `changes` random points of about `points` its
  /// priority becomes the lowest.
  static chooser by_priority(std::uint64_t seed, std::size_t threads, unsigned changes, std::uint64_t points);
  /// Repeats the turns of a record, and finds their points by name. Elsewhere chooses as `usual`.
  static chooser replay(std::vector<turn> turns);

  /// Returns one of `runnable`, which must be sorted and not empty.
  std::uint32_t choose(const position& place, const std::vector<std::uint32_t>& runnable);
  /// The choice that needs no record: the thread itself, else the next runnable one.
  static std::uint32_t usual(const position& place, const std::vector<std::uint32_t>& runnable) noexcept;

 private:
  enum class way : std::uint8_t { random, priority, replay };
  explicit chooser(way kind, std::uint64_t seed) : kind_{kind}, random_{seed} {}
  std::uint32_t by_priority(const position& place, const std::vector<std::uint32_t>& runnable);

  way kind_;
  generator random_;
  unsigned percent_ = 0;
  std::vector<std::int64_t> priorities_;
  std::vector<std::uint64_t> changes_;  // sorted, the next one last
  std::int64_t lowest_ = 0;
  std::uint64_t points_ = 0;
  std::vector<turn> turns_;
};

}  // namespace gpumem::schedules
