// A sketch of paged segments on which requests and frees to come are played through, to see how many bytes would move.
//
// Of two places for a large request, the better one is that after which less has to be moved for what is expected next.
// Each place is tried as the pool would go on from it: large requests to the lowest place that fits, or where the
// fewest pages are missing, these made new as far as the policy lets them, the rest moved from the shortest idle
// stretches. And once more as if each went where it lay the last time, if that is free: what was found to need no move
// is then kept. Choosing an action by playing a fixed policy on from it is a rollout (Bertsekas, Tsitsiklis and Wu
// 1997). What moves later counts less, since it is less certain. Reads the heap when it is made, and never after.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "heap.hpp"
#include "large_requests.hpp"

namespace gpumem {

/// What decides how much may be made new.
struct page_supply {
  std::uint64_t live_bytes = 0;
  std::uint64_t peak_live_bytes = 0;
  std::uint64_t reserved_bytes = 0;
};

/// The bytes that may be made new for a request that lacks so many.
using may_make = std::function<std::uint64_t(const page_supply& now, std::uint64_t need, std::uint64_t missing)>;

class page_sketch {
 public:
  /// Of the class's segments; free is what `serves` says the owner's free blocks are. Incomplete, and larger than
  /// `most_extents`, where there would be more than these.
  page_sketch(const heap& in, unsigned klass, const std::vector<bool>& serves, std::uint64_t page_bytes,
              std::size_t most_extents);

  [[nodiscard]] std::size_t size() const noexcept { return extents_.size(); }
  /// Where a request may begin: at either end of what lies between two blocks in use, and of each free stretch in it.
  [[nodiscard]] std::vector<std::uint64_t> places(std::uint64_t bytes) const;
  /// Where the pool would place it; none where it fits nowhere.
  [[nodiscard]] std::optional<std::uint64_t> usual_place(std::uint64_t bytes) const;
  /// True where a request there would meet nothing in use.
  [[nodiscard]] bool open(std::uint64_t begin, std::uint64_t bytes) const noexcept;
  /// What is unbacked of the pages that a request there touches.
  [[nodiscard]] std::uint64_t missing(std::uint64_t begin, std::uint64_t bytes) const noexcept;
  /// Returns the bytes that move for it, with those that would have to and cannot.
  std::uint64_t place(std::uint64_t begin, std::uint64_t bytes, page_supply* supply, const may_make& make);
  void free(std::uint64_t begin, std::uint64_t bytes, page_supply* supply);
  /// Extents looked at so far, about: what all of it costs.
  [[nodiscard]] std::uint64_t looked_at() const noexcept { return looked_at_; }

 private:
  enum class state : std::uint8_t { used, free, unbacked, wall };
  struct extent {
    std::uint64_t begin;
    std::uint64_t end;
    state is;
  };

  [[nodiscard]] std::size_t index_of(std::uint64_t position) const noexcept;
  void set(std::uint64_t begin, std::uint64_t end, state to);
  std::uint64_t move_away(std::uint64_t bytes, std::uint64_t keep, std::uint64_t keep_end);

  std::vector<extent> extents_;
  std::uint64_t page_;
  mutable std::uint64_t looked_at_ = 0;
};

/// Of the `places` for `bytes`, which are being asked for, one that lets less move from now on than `usual` does; none
/// where nothing is expected to move, or no place is better. After `most_looks` at an extent, the best so far.
std::optional<std::uint64_t> better_place(const page_sketch& now, const std::vector<std::uint64_t>& places,
                                          std::uint64_t usual, std::uint64_t bytes,
                                          const std::vector<expected_step>& expected, const page_supply& supply,
                                          const may_make& make, std::uint64_t most_looks);

}  // namespace gpumem
