/// The strategy that combines the searches, which are independent of each other.
#include "solve.hpp"

#include <algorithm>
#include <array>

#include "bits.hpp"
#include "ejection_search.hpp"
#include "gap_fill.hpp"
#include "height_bound.hpp"
#include "orders.hpp"
#include "packing_search.hpp"
#include "sections.hpp"

namespace gpumem::plan {
namespace {

using clock = std::chrono::steady_clock;

/// A search leaves out buffers below these shares of the peak load; gap filling places them afterwards.
constexpr std::array<double, 6> size_levels{0.02, 0.005, 0.002, 0.0005, 0.0001, 0};
constexpr std::uint64_t most_pairs = 40'000'000;       // of the ejection search: 160 MB
constexpr std::uint64_t work_of_orders = 600'000'000;  // pairs examined by gap filling, over all orders
constexpr std::size_t most_exhausted = 1600;           // buffers of the exhaustive search
constexpr std::size_t few = 600;                       // up to here it tries every order and rule

constexpr unsigned lots = 3;  // ejection searches of each kind at one level and effort

enum class outcome : std::uint8_t { found, impossible, open };

class solver {
 public:
  solver(const problem& buffers, const solve_options& options)
      : buffers_{buffers},
        options_{options},
        budget_{clock::now() + options.time_limit, options.most_steps},
        cut_{cut_into_sections(buffers)},
        filler_{buffers, cut_},
        peak_{peak_load(buffers)},
        unit_{height_unit(buffers)},
        bound_{peak_.bytes},
        proof_{peak_.time, peak_.time + 1} {}

  void run() {
    fill_in_orders();
    for (unsigned effort = 0; !done(); ++effort) {
      if (options_.capacity != 0) {
        if (attempt(options_.capacity, effort) == outcome::impossible) return prove_above(options_.capacity, effort);
        // Not at first: most feasible targets are found quickly.
        if (effort != 0 && !done() && proves_too_small(options_.capacity, effort)) return;
      } else if (!halve(effort)) {
        return;
      }
    }
  }

  [[nodiscard]] solution take() && { return {std::move(best_), height_, peak_, bound_, proof_, {}}; }

 private:
  [[nodiscard]] bool good() const {
    if (best_.size() != buffers_.size()) return false;
    if (options_.capacity != 0) return height_ <= options_.capacity;
    return height_ == bound_ || height_ <= peak_.bytes + slack();
  }
  [[nodiscard]] std::uint64_t slack() const {
    return static_cast<std::uint64_t>(options_.tolerance * static_cast<double>(peak_.bytes));
  }
  [[nodiscard]] bool done() const { return good() || budget_.spent(); }

  void keep(placement found) {
    const std::uint64_t reached = height(buffers_, found);
    if (!best_.empty() && reached >= height_) return;
    best_ = std::move(found);
    height_ = reached;
  }

  void fill_in_orders() {
    const std::uint64_t pairs = std::max<std::uint64_t>(ejection_search::pairs(buffers_, cut_), 1);
    std::uint64_t tries =
        std::clamp<std::uint64_t>(std::min(work_of_orders, options_.most_steps) / pairs, 2, 2 * plain_order_count);
    for (int ordering = 0; ordering < plain_order_count; ++ordering) {
      const std::vector<std::uint32_t> order = ordered(buffers_, cut_, static_cast<order_by>(ordering));
      for (const fit which : {fit::lowest, fit::tightest}) {
        if (tries-- == 0) return;
        keep(filler_.place(order, which));
        budget_.took(pairs);
        if (done()) return;
      }
    }
  }

  /// Chooses the next target: first a height that is good enough, then by bisection between the best height and one
  /// that seems too low. False if nothing is left to do.
  bool halve(unsigned effort) {
    std::uint64_t too_low = bound_ - unit_;
    bool first = true;
    bool raised = false;
    while (!done() && height_ - too_low > unit_) {
      const std::uint64_t target = round_down(first ? bound_ + slack() : too_low + (height_ - too_low) / 2, unit_);
      first = false;
      const outcome verdict = attempt(target, effort);
      if (verdict != outcome::found) too_low = std::max(too_low, target);
      if (verdict != outcome::impossible) continue;
      if (raised) {
        raise_bound({target + unit_, busy_window(buffers_, 0)});
      } else {
        raised = true;
        prove_above(target, effort);
        too_low = std::max(too_low, bound_ - unit_);
      }
    }
    return height_ > bound_;
  }

  /// An impossible height is a bound. Finds the window that proves it, and tries to raise the bound.
  void prove_above(std::uint64_t impossible, unsigned effort) {
    raise_bound(raised_bound(buffers_, {bound_, height_}, effort, budget_));
    raise_bound({round_down(impossible, unit_) + unit_, busy_window(buffers_, 0)});
  }
  bool proves_too_small(std::uint64_t capacity, unsigned effort) {
    const std::uint64_t next = round_down(capacity, unit_) + unit_;
    const proven_height raised = raised_bound(buffers_, {capacity, next}, effort, budget_);
    if (raised.bytes <= capacity) return false;
    raise_bound(raised);
    return true;
  }
  void raise_bound(const proven_height& proven) {
    if (proven.bytes <= bound_) return;
    bound_ = proven.bytes;
    proof_ = proven.during;
  }

  outcome attempt(std::uint64_t target, unsigned effort) {
    std::size_t before = 0;
    for (const double share : size_levels) {
      problem large;
      std::vector<std::uint32_t> large_indices;
      std::vector<std::uint32_t> rest;
      const auto least = static_cast<std::uint64_t>(share * static_cast<double>(peak_.bytes));
      for (std::uint32_t i = 0; i < buffers_.size(); ++i)
        (buffers_[i].size >= least ? large_indices : rest).push_back(i);
      if (large_indices.size() == before) continue;  // the same buffers as at the level above
      before = large_indices.size();
      budget_.took(buffers_.size());  // to cut them into sections
      for (const std::uint32_t i : large_indices) large.push_back(buffers_[i]);
      const outcome verdict = attempt(large, large_indices, rest, target, effort);
      if (verdict != outcome::open || budget_.spent()) return verdict;
    }
    return outcome::open;
  }

  outcome attempt(const problem& large, const std::vector<std::uint32_t>& large_indices,
                  const std::vector<std::uint32_t>& rest, std::uint64_t target, unsigned effort) {
    const sections cut = cut_into_sections(large);
    if (ejection_search::pairs(large, cut) <= most_pairs) {
      ejection_search search{large, cut};
      const std::vector<std::uint32_t> rank = rank_of(ordered(large, cut, order_by::peak_then_lifetime));
      // A search finds a placement soon or not at all, so many short searches beat a long one.
      const std::uint64_t steps = large.size() * 2 + (std::uint64_t{2000} << effort);
      for (unsigned lot = 0; lot < 2 * lots; ++lot) {
        if (budget_.spent()) return outcome::open;
        const ejection_rule rule{.weigh_by_size = lot % 2 == 1, .lot = effort * lots + lot / 2};
        if (search.run(target, rank, rule, steps, budget_) && complete(search.offsets(), large_indices, rest, target)) {
          return outcome::found;
        }
      }
    }
    return large.size() <= most_exhausted ? exhaust(large, cut, large_indices, rest, target, effort) : outcome::open;
  }

  outcome exhaust(const problem& large, const sections& cut, const std::vector<std::uint32_t>& large_indices,
                  const std::vector<std::uint32_t>& rest, std::uint64_t target, unsigned effort) {
    if (!may_fit(large, target)) return outcome::impossible;
    for (const auto how : {packing_search::pruning::bold, packing_search::pruning::exact}) {
      packing_search search{large, cut, target, how};
      switch (exhaust(search, large, cut, effort)) {
        case packing_search::outcome::found:
          // The small buffers did not fit: the next level includes more of them.
          return complete(search.offsets(), large_indices, rest, target) ? outcome::found : outcome::open;
        case packing_search::outcome::exhausted:
          break;  // proven impossible, or lost by bold pruning
        case packing_search::outcome::impossible:
          return outcome::impossible;
        case packing_search::outcome::gave_up:
          return outcome::open;
      }
    }
    return outcome::open;
  }

  packing_search::outcome exhaust(packing_search& search, const problem& large, const sections& cut, unsigned effort) {
    const bool all = large.size() <= few || effort > 1;
    const std::uint64_t nodes = (large.size() <= few ? 1000 : 2 * large.size()) << effort;
    for (int ordering = 0; ordering < (all ? order_count : 1); ++ordering) {
      for (int rule = 0; rule < packing_search::rule_count; ++rule) {
        const std::vector<std::uint32_t> rank =
            rank_of(ordered(large, cut, static_cast<order_by>(ordering), search.failures()));
        const auto verdict = search.run(rank, static_cast<packing_search::rule>(rule), nodes, budget_);
        if (verdict != packing_search::outcome::gave_up || budget_.spent()) return verdict;
      }
    }
    return packing_search::outcome::gave_up;
  }

  /// Places the small buffers around the large ones; true if all end within `target`.
  bool complete(const placement& offsets, const std::vector<std::uint32_t>& large_indices,
                const std::vector<std::uint32_t>& rest, std::uint64_t target) {
    placement given(buffers_.size());
    for (std::size_t k = 0; k < large_indices.size(); ++k) given[large_indices[k]] = offsets[k];
    if (!rest.empty()) {
      if (all_in_order_.empty()) all_in_order_ = ordered(buffers_, cut_, order_by::peak_then_lifetime);
      std::vector<char> small(buffers_.size());
      for (const std::uint32_t i : rest) small[i] = 1;
      std::vector<std::uint32_t> order;
      std::copy_if(all_in_order_.begin(), all_in_order_.end(), std::back_inserter(order),
                   [&](std::uint32_t index) { return small[index] != 0; });
      given = filler_.place(order, fit::lowest, given, large_indices);
    }
    const bool low = height(buffers_, given) <= target;
    keep(std::move(given));
    return low;
  }

  const problem& buffers_;
  const solve_options& options_;
  search_budget budget_;
  sections cut_;
  gap_fill filler_;
  std::vector<std::uint32_t> all_in_order_;
  load peak_;
  std::uint64_t unit_;
  std::uint64_t bound_;
  window proof_;
  placement best_;
  std::uint64_t height_ = 0;
};

}  // namespace

result<solution> solve(const problem& buffers, const solve_options& options) {
  const clock::time_point began = clock::now();
  if (status ok = check(buffers); !ok) return ok;
  if (options.capacity != 0) {
    if (status ok = may_fit(buffers, options.capacity); !ok) return ok;
  }
  if (buffers.empty()) return solution{};
  solver search{buffers, options};
  search.run();
  solution found = std::move(search).take();
  found.took = std::chrono::duration_cast<std::chrono::microseconds>(clock::now() - began);
  return found;
}

}  // namespace gpumem::plan
