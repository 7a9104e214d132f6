#include "height_bound.hpp"

#include <algorithm>
#include <array>

#include "bits.hpp"
#include "orders.hpp"
#include "packing_search.hpp"
#include "sections.hpp"

namespace gpumem::plan {
namespace {

/// A window lasts from the first to the last moment with this share of the peak load. The shortest windows, with the
/// smallest problems, come first; the last window is the whole time.
constexpr std::array<double, 5> busy_shares{0.95, 0.9, 0.75, 0.5, 0};
/// The proof leaves out buffers below these shares of the peak load, except those alive at the peak.
constexpr std::array<double, 6> size_shares{0.02, 0.005, 0.002, 0.0005, 0.0001, 0};
constexpr std::size_t most_relaxed = 600;  // buffers

std::uint64_t share_of(std::uint64_t bytes, double share) {
  return static_cast<std::uint64_t>(share * static_cast<double>(bytes));
}

/// A smaller problem: buffers cut to a window, and the bytes of the buffers alive throughout the window.
struct relaxed {
  problem rest;
  std::uint64_t on_the_floor = 0;
};

relaxed cut_to(const problem& buffers, const window& span, const load& peak, std::uint64_t least_size) {
  std::uint64_t alignment = 1;
  for (const buffer& each : buffers) alignment = std::max(alignment, each.alignment);
  relaxed cut;
  for (buffer each : buffers) {
    const bool at_peak = each.lower <= peak.time && peak.time < each.upper;
    each.lower = std::max(each.lower, span.lower);
    each.upper = std::min(each.upper, span.upper);
    if (each.lower >= each.upper) continue;
    // The size must be a multiple of every alignment, so that the buffers above can drop by it.
    if (each.lower == span.lower && each.upper == span.upper && each.size % alignment == 0) {
      cut.on_the_floor += each.size;
    } else if (each.size >= least_size || at_peak) {
      cut.rest.push_back(each);
    }
  }
  return cut;
}

/// Returns a proven bound of these buffers, or 0 if it proves none above `known.bound`. Bisects between `known.bound`,
/// which need not be a bound of these buffers, and the lowest height that is possible or not yet disproven.
std::uint64_t proven_of(const problem& buffers, height_range known, unsigned effort, search_budget& budget) {
  const std::uint64_t unit = height_unit(buffers);
  const sections cut = cut_into_sections(buffers);
  const std::uint64_t peak = round_up(peak_load(buffers).bytes, unit);
  std::uint64_t proven = peak > known.bound ? peak : 0;
  std::uint64_t low =
      std::max(round_down(known.bound, unit), peak);  // if this is impossible, a unit above it is proven
  // Checks this height even if nothing is left in between: a proof raises the bound by a whole unit.
  std::uint64_t possible = std::max(round_down(known.height, unit), low + unit);
  while (low < possible && !budget.spent()) {
    const std::uint64_t target = low + round_down((possible - low) / 2, unit);
    packing_search search{buffers, cut, target, packing_search::pruning::exact};
    packing_search::outcome verdict = packing_search::outcome::gave_up;
    for (int rule = 0; rule < packing_search::rule_count && verdict == packing_search::outcome::gave_up; ++rule) {
      const std::vector<std::uint32_t> rank = rank_of(ordered(buffers, cut, order_by::failures, search.failures()));
      verdict = search.run(rank, static_cast<packing_search::rule>(rule), std::uint64_t{1000} << effort, budget);
    }
    if (verdict == packing_search::outcome::impossible) {
      proven = low = target + unit;
    } else {
      possible = target;
    }
  }
  return proven;
}

}  // namespace

proven_height raised_bound(const problem& buffers, height_range known, unsigned effort, search_budget& budget) {
  const load peak = peak_load(buffers);
  proven_height best{known.bound, {}};
  window before;
  for (const double busy : busy_shares) {
    const window current = busy_window(buffers, share_of(peak.bytes, busy));
    if (current.lower == before.lower && current.upper == before.upper) continue;
    before = current;
    std::size_t searched = 0;
    for (const double share : size_shares) {
      if (best.bytes >= known.height || budget.spent()) return best;
      const relaxed some = cut_to(buffers, current, peak, share_of(peak.bytes, share));
      if (some.rest.size() > most_relaxed) break;
      if (some.rest.size() == searched) continue;  // no buffers, or the same as at the level above
      searched = some.rest.size();
      const std::uint64_t floor = some.on_the_floor;
      const std::uint64_t rest_bound = best.bytes > floor ? best.bytes - floor : 0;
      const std::uint64_t rest = proven_of(some.rest, {rest_bound, known.height - floor}, effort, budget);
      if (rest != 0 && rest + floor > best.bytes) best = {rest + floor, current};
    }
  }
  return best;
}

}  // namespace gpumem::plan
