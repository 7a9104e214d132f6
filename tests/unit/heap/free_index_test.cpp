#include "free_index.hpp"

#include <gtest/gtest.h>

#include <random>
#include <set>
#include <tuple>
#include <vector>

namespace gpumem {
namespace {

struct indexed {
  block_table blocks;
  free_index index;
  std::set<std::tuple<std::uint64_t, std::uint64_t, block_index>> model;  // (bytes, begin)

  block_index add(std::uint64_t bytes, std::uint64_t begin) {
    const block_index i = blocks.take();
    blocks[i].bytes = bytes;
    blocks[i].begin = begin;
    blocks[i].state = block_state::free;
    index.insert(blocks, i);
    model.emplace(bytes, begin, i);
    return i;
  }
  void remove(block_index i) {
    index.erase(blocks, i);
    model.erase({blocks[i].bytes, blocks[i].begin, i});
    blocks.give(i);
  }
  [[nodiscard]] block_index expected(std::uint64_t bytes) const {
    const auto it = model.lower_bound({bytes, 0, 0});
    return it == model.end() ? no_block : std::get<2>(*it);
  }
};

TEST(free_index, finds_the_smallest_that_fits_and_of_equals_the_lowest) {
  indexed x;
  x.add(1024, 8192);
  const block_index low = x.add(1024, 4096);
  x.add(4096, 0);
  EXPECT_EQ(x.index.best_fit(x.blocks, 512), low);
  EXPECT_EQ(x.index.best_fit(x.blocks, 1024), low);
  EXPECT_EQ(x.blocks[x.index.best_fit(x.blocks, 1536)].bytes, 4096U);
  EXPECT_EQ(x.index.best_fit(x.blocks, 4608), no_block);
}

TEST(free_index, agrees_with_a_set_over_every_magnitude) {
  std::mt19937_64 random{11};
  indexed x;
  std::vector<block_index> held;
  const auto any_size = [&] {
    const auto shift = random() % 34;
    return ((random() % 16 + 16) << shift) / 16 * 512 + (random() % 4 == 0 ? 512 : 0);
  };
  for (int step = 0; step < 100'000; ++step) {
    if (held.empty() || random() % 5 < 3) {
      held.push_back(x.add(any_size(), random() % 64 * 512 + (static_cast<std::uint64_t>(step) << 20)));
    } else {
      const std::size_t which = random() % held.size();
      x.remove(held[which]);
      held[which] = held.back();
      held.pop_back();
    }
    const std::uint64_t ask = any_size();
    ASSERT_EQ(x.index.best_fit(x.blocks, ask), x.expected(ask)) << "step " << step << ", " << ask << " bytes";
    ASSERT_EQ(x.index.largest(x.blocks), x.model.empty() ? no_block : std::get<2>(*x.model.rbegin()));
    if (step % 5000 != 0) continue;
    ASSERT_TRUE(x.index.valid(x.blocks));
    std::vector<block_index> visited;
    x.index.visit_at_least(x.blocks, ask, [&](block_index each) { visited.push_back(each); });
    std::vector<block_index> large_enough;
    for (auto it = x.model.lower_bound({ask, 0, 0}); it != x.model.end(); ++it)
      large_enough.push_back(std::get<2>(*it));
    ASSERT_EQ(visited, large_enough);
  }
  EXPECT_EQ(x.index.size(), x.model.size());
}

TEST(free_index, a_search_among_many_equal_blocks_stays_logarithmic) {
  // 200,000 blocks of one size in ascending order, the worst case of a tree that does not balance itself: a quadratic
  // walk would take minutes here.
  indexed x;
  for (std::uint64_t i = 0; i < 200'000; ++i) x.add(2048, i * 4096);
  for (std::uint64_t i = 0; i < 200'000; ++i) {
    const block_index found = x.index.best_fit(x.blocks, 2048);
    ASSERT_EQ(x.blocks[found].begin, i * 4096);
    x.index.erase(x.blocks, found);
  }
  EXPECT_TRUE(x.index.empty());
}

}  // namespace
}  // namespace gpumem
