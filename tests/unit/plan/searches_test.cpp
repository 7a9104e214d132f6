#include <gtest/gtest.h>

#include <functional>
#include <numeric>
#include <utility>

#include "ejection_search.hpp"
#include "gap_fill.hpp"
#include "orders.hpp"
#include "packing_search.hpp"
#include "random_problem.hpp"
#include "search_budget.hpp"
#include "validate.hpp"

namespace gpumem::plan {
namespace {

search_budget never{search_budget::clock::time_point::max()};

/// The lowest possible height, by trying every order: in one of them each buffer falls onto the buffer that supports it
/// in the optimum.
std::uint64_t lowest_height(const problem& buffers) {
  const sections cut = cut_into_sections(buffers);
  std::vector<std::uint32_t> order(buffers.size());
  std::iota(order.begin(), order.end(), std::uint32_t{0});
  std::uint64_t best = UINT64_MAX;
  do {
    std::vector<std::uint64_t> floor(cut.load.size());
    std::uint64_t top = 0;
    for (const std::uint32_t i : order) {
      const auto from = floor.begin() + cut.ranges[i].first;
      const auto to = floor.begin() + cut.ranges[i].last;
      const std::uint64_t end = *std::max_element(from, to) + buffers[i].size;
      std::fill(from, to, end);
      top = std::max(top, end);
    }
    best = std::min(best, top);
  } while (std::next_permutation(order.begin(), order.end()));
  return best;
}

TEST(packing_search, finds_the_optimum_and_proves_it_whatever_the_rule) {
  for (std::uint64_t seed = 0; seed < 60; ++seed) {
    const problem buffers = random_problem(seed, 7, 1);
    const sections cut = cut_into_sections(buffers);
    const std::uint64_t lowest = lowest_height(buffers);
    const std::vector<std::uint32_t> rank = rank_of(ordered(buffers, cut, order_by::size));
    for (const auto& [how, nothing] :
         {std::pair{packing_search::pruning::bold, packing_search::outcome::exhausted},
          std::pair{packing_search::pruning::exact, packing_search::outcome::impossible}}) {
      for (int rule = 0; rule < packing_search::rule_count; ++rule) {
        packing_search search{buffers, cut, lowest, how};
        ASSERT_EQ(search.run(rank, static_cast<packing_search::rule>(rule), 1'000'000, never),
                  packing_search::outcome::found)
            << "seed " << seed << " rule " << rule;
        const status ok = validate(buffers, search.offsets(), lowest);
        EXPECT_TRUE(ok) << ok.message();
        if (!may_fit(buffers, lowest - 1)) continue;
        packing_search below{buffers, cut, lowest - 1, how};
        EXPECT_EQ(below.run(rank, static_cast<packing_search::rule>(rule), 1'000'000, never), nothing)
            << "seed " << seed << " rule " << rule;
      }
    }
  }
}

// An item that fits below another one (3 below 4) is kept from there by one that the other does not overlap (6).
TEST(packing_search, loses_nothing_with_exact_pruning) {
  const problem buffers{{.id = 1, .lower = 0, .upper = 4, .size = 9, .alignment = 4},
                        {.id = 2, .lower = 5, .upper = 7, .size = 7, .alignment = 4},
                        {.id = 3, .lower = 2, .upper = 6, .size = 1, .alignment = 1},
                        {.id = 4, .lower = 1, .upper = 4, .size = 3, .alignment = 2},
                        {.id = 5, .lower = 4, .upper = 5, .size = 3, .alignment = 1},
                        {.id = 6, .lower = 5, .upper = 6, .size = 5, .alignment = 4}};
  const placement fits{0, 0, 13, 10, 0, 8};
  ASSERT_TRUE(validate(buffers, fits, 14));
  const sections cut = cut_into_sections(buffers);
  for (int by = 0; by < plain_order_count; ++by) {
    const std::vector<std::uint32_t> rank = rank_of(ordered(buffers, cut, static_cast<order_by>(by)));
    for (int rule = 0; rule < packing_search::rule_count; ++rule) {
      packing_search search{buffers, cut, 14, packing_search::pruning::exact};
      ASSERT_EQ(search.run(rank, static_cast<packing_search::rule>(rule), 1'000'000, never),
                packing_search::outcome::found)
          << by << ", " << rule;
      EXPECT_TRUE(validate(buffers, search.offsets(), 14));
    }
  }
}

TEST(packing_search, gives_up_when_its_nodes_are_used_up) {
  const problem buffers = cut_rectangle(3, 200, 1000, 1000);
  const sections cut = cut_into_sections(buffers);
  packing_search search{buffers, cut, 1000, packing_search::pruning::bold};
  EXPECT_EQ(search.run(rank_of(ordered(buffers, cut, order_by::size)), packing_search::rule::first_item, 3, never),
            packing_search::outcome::gave_up);
}

TEST(ejection_search, fills_a_rectangle_that_gap_filling_does_not) {
  unsigned better = 0;
  for (std::uint64_t seed = 0; seed < 10; ++seed) {
    const problem buffers = cut_rectangle(seed, 40, 4096, 4096);
    const sections cut = cut_into_sections(buffers);
    const std::vector<std::uint32_t> order = ordered(buffers, cut, order_by::peak_then_lifetime);
    gap_fill filler{buffers, cut};
    const std::uint64_t capacity = 4096 + 4096 / 8;
    const bool filled = height(buffers, filler.place(order, fit::lowest)) <= capacity;
    ejection_search search{buffers, cut};
    const bool found = search.run(capacity, rank_of(order), {}, 100'000, never);
    if (found) {
      const status ok = validate(buffers, search.offsets(), capacity);
      EXPECT_TRUE(ok) << ok.message();
    }
    if (found && !filled) ++better;
  }
  EXPECT_GE(better, 3U);
}

TEST(ejection_search, respects_alignment_and_refuses_what_is_too_large) {
  problem buffers = random_problem(4, 50, 8);
  for (buffer& each : buffers) each.alignment = 64;
  const sections cut = cut_into_sections(buffers);
  const std::vector<std::uint32_t> rank = rank_of(ordered(buffers, cut, order_by::size));
  ejection_search search{buffers, cut};
  const std::uint64_t capacity = 4 * peak_load(buffers).bytes;
  ASSERT_TRUE(search.run(capacity, rank, {}, 100'000, never));
  const status ok = validate(buffers, search.offsets(), capacity);
  EXPECT_TRUE(ok) << ok.message();
  EXPECT_FALSE(search.run(8, rank, {}, 100'000, never));
}

TEST(gap_fill, places_around_what_is_given) {
  const problem buffers{{.id = 0, .lower = 0, .upper = 9, .size = 10},
                        {.id = 1, .lower = 2, .upper = 4, .size = 5},
                        {.id = 2, .lower = 3, .upper = 6, .size = 4}};
  const sections cut = cut_into_sections(buffers);
  gap_fill filler{buffers, cut};
  EXPECT_EQ(filler.place({1, 2}, fit::lowest, {5, 0, 0}, {0}), (placement{5, 0, 15}));
}

TEST(gap_fill, is_right_in_every_order) {
  const problem buffers = random_problem(9, 400);
  const sections cut = cut_into_sections(buffers);
  gap_fill filler{buffers, cut};
  for (int by = 0; by < order_count; ++by) {
    for (const fit which : {fit::lowest, fit::tightest}) {
      const status ok = validate(buffers, filler.place(ordered(buffers, cut, static_cast<order_by>(by)), which));
      EXPECT_TRUE(ok) << by << ": " << ok.message();
    }
  }
}

}  // namespace
}  // namespace gpumem::plan
