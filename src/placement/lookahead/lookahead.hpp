// Where a paged pool that moves pages puts a large request, by what is expected to come next.
//
// It remembers large requests and frees (large_requests.hpp). While pages moved lately, or a block was placed otherwise
// than usually, it simulates what is expected on a sketch of the pool (rollout.hpp), for the usual place and for each
// other one, and names the place after which least moves. That takes some tens of microseconds, for requests each of
// which may else move pages at some hundred microseconds a page. Reads the heap; the pool's lock guards it. Where the
// host has no memory for it, it knows nothing and the usual place is taken.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "best_fit.hpp"
#include "large_requests.hpp"
#include "page_place.hpp"
#include "rollout.hpp"

namespace gpumem {

class lookahead {
 public:
  /// Looks at requests from so many bytes on; none by default.
  explicit lookahead(std::uint64_t large_bytes = UINT64_MAX) : large_bytes_{large_bytes} {}

  [[nodiscard]] bool is_large(std::uint64_t bytes) const noexcept { return bytes >= large_bytes_; }
  /// A large request; its number, or 0 where the host has no memory to note it.
  large_requests::number requested(std::uint64_t bytes) noexcept;
  /// It lies there now, or its block is free again.
  void placed(large_requests::number n, std::uint64_t begin) noexcept;
  void freed(std::uint64_t begin) noexcept;

  /// Pages moved, or a block went elsewhere than it usually would: the next requests are worth a look ahead.
  void wake() noexcept { woken_at_ = latest_or_one(); }
  /// Until that happens again, none is.
  void sleep() noexcept { woken_at_ = 0; }
  /// That request is worth one, on such a heap.
  [[nodiscard]] bool is_worth(large_requests::number n, const heap& in) const noexcept;

  /// What `better_place` needs to know of the pool.
  struct pool_now {
    std::uint64_t page_bytes = 0;
    std::vector<bool> free_now;   ///< by owner: its free blocks may serve the request at once
    std::vector<bool> free_soon;  ///< or behind a fence
    page_supply supply;
    may_make make;
  };
  /// A place that lets less move from now on than the usual one does; none where there is none, or the host has no
  /// memory to look. With `at_once`, a place that no fence stands before.
  [[nodiscard]] std::optional<page_place> better_place(const heap& in, const placement_request& r,
                                                       large_requests::number n, std::uint64_t usual,
                                                       const pool_now& now, bool at_once) const;

  [[nodiscard]] std::uint64_t metadata_bytes() const noexcept { return seen_.metadata_bytes(); }

 private:
  [[nodiscard]] large_requests::number latest_or_one() const noexcept {
    return seen_.latest() != 0 ? seen_.latest() : 1;
  }

  std::uint64_t large_bytes_;
  large_requests seen_;
  large_requests::number woken_at_ = 0;  // 0: asleep
};

}  // namespace gpumem
