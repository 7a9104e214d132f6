#include "lookahead.hpp"

#include <new>

namespace gpumem {
namespace {

/// Of large requests and frees: after so many in which no page moved, and none was placed otherwise than usually, the
/// pool is taken to be at rest.
constexpr large_requests::number at_rest_after = 1000;
/// Steps that are looked ahead.
constexpr std::uint32_t most_steps = 32;
/// What a decision may cost: blocks of the heap, extents of the sketch, and looks at these, of some nanoseconds each.
constexpr std::uint64_t most_blocks = 8192;
constexpr std::size_t most_extents = 512;
constexpr std::uint64_t most_looks = 200'000;

}  // namespace

large_requests::number lookahead::requested(std::uint64_t bytes) noexcept {
  try {
    return seen_.requested(bytes);
  } catch (const std::bad_alloc&) {
    return 0;
  }
}

void lookahead::placed(large_requests::number n, std::uint64_t begin) noexcept {
  try {
    seen_.placed(n, begin);
  } catch (const std::bad_alloc&) {  // its free will not be noted, either
  }
}

void lookahead::freed(std::uint64_t begin) noexcept { seen_.freed(begin); }

bool lookahead::is_worth(large_requests::number n, const heap& in) const noexcept {
  return n != 0 && woken_at_ != 0 && seen_.latest() - woken_at_ <= at_rest_after &&
         in.totals().live_blocks + in.totals().free_blocks <= most_blocks;
}

std::optional<page_place> lookahead::better_place(const heap& in, const placement_request& r, large_requests::number n,
                                                  std::uint64_t usual, const pool_now& now, bool at_once) const {
  try {
    const std::vector<expected_step> expected = seen_.expected_after(n, most_steps);
    if (expected.empty()) return std::nullopt;
    const page_sketch soon{in, r.klass, now.free_soon, now.page_bytes, most_extents};
    const page_sketch here{in, r.klass, now.free_now, now.page_bytes, most_extents};
    if (soon.size() > most_extents || here.size() > most_extents) return std::nullopt;
    const page_sketch& from = at_once ? here : soon;
    std::vector<std::uint64_t> places = from.places(r.bytes);
    for (const std::uint64_t begin : seen_.earlier_places(n)) {
      if (from.open(begin, r.bytes)) places.push_back(begin);
    }
    const std::optional<std::uint64_t> begin =
        gpumem::better_place(soon, places, usual, r.bytes, expected, now.supply, now.make, most_looks);
    if (!begin) return std::nullopt;
    return page_place{.begin = *begin, .first = in.containing(*begin), .missing_bytes = soon.missing(*begin, r.bytes)};
  } catch (const std::bad_alloc&) {
    return std::nullopt;
  }
}

}  // namespace gpumem
