// Finds out whether a program repeats requests that it has made before.
//
// A program repeats once it has made three times as many requests as up to its latest new one: from the beginning of
// the fourth pass through a step on. A request is new if no earlier one had its size while as many bytes were live, in
// units of 2 MiB, with the same size of the latest request before it of `ordered_bytes` and more, or with none before
// it. Training repeats the requests of its first step; a server whose batches vary goes on making new ones, and so does
// a program that takes blocks of few sizes in random order. One new request, as where live bytes drift, costs about
// eight more passes, however long the program has run. Only requests that no thread's cache serves are counted, and
// none so small that caches keep many of its kind, because those would stop when caches fill.
//
// Requests are remembered by a hash of fixed size. When half of the table is used, it forgets every second hash, by one
// more bit, and from then on counts only requests whose hashes it would keep (adaptive sampling: Flajolet, "On adaptive
// sampling", Computing 43, 1990). So the counts are those of a sample, and only their ratio has a meaning. What a pool
// holds depends on requests of `large_bytes` and more. Their hashes are forgotten only once few smaller requests are
// left to forget, so that a program with few of them misses none. The pool's lock guards it.
#pragma once

#include <array>
#include <cstdint>

#include "bits.hpp"

namespace gpumem {

class repetition {
 public:
  /// Counts a request of `bytes` that comes while `live_bytes` are live.
  void count(std::uint64_t bytes, std::uint64_t live_bytes) noexcept;

  /// Whether three times as many requests were made as up to the latest new one.
  [[nodiscard]] bool repeats() const noexcept {
    return requests_[0] + requests_[1] > repeated_after * (latest_new_[0] + latest_new_[1]);
  }

 private:
  static constexpr std::uint64_t repeated_after = 3;
  static constexpr std::uint64_t kept_passes = 4;
  static constexpr std::size_t places = 2048;
  static constexpr std::uint64_t live_unit_bytes = 2 * mib;
  static constexpr std::uint64_t large_bytes = 16 * mib;
  static constexpr std::uint64_t ordered_bytes = mib;
  using by_kind = std::array<std::uint64_t, 2>;  ///< of smaller requests, and of those of `large_bytes` and more

  [[nodiscard]] std::uint64_t& place_of(std::uint64_t hash) noexcept;
  void forget_half(std::size_t kind) noexcept;

  std::array<std::uint64_t, places> seen_{};  ///< hashes, 0: none; open addressing
  std::uint64_t latest_ordered_ = 0;          ///< the size of the latest request of `ordered_bytes` and more
  by_kind used_{};
  by_kind skipped_bits_{};  ///< only hashes in which these bits are 0 are counted
  by_kind requests_{};
  by_kind latest_new_{};  ///< the requests up to the latest that was new
};

}  // namespace gpumem
