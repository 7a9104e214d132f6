#include "budget.hpp"

#include <gtest/gtest.h>

#include <atomic>
#include <thread>
#include <vector>

namespace gpumem {
namespace {

TEST(budget, gives_out_its_limit_to_the_byte_and_no_more) {
  budget b{100};
  EXPECT_TRUE(b.reserve(60));
  EXPECT_FALSE(b.reserve(41));
  EXPECT_TRUE(b.reserve(40));
  EXPECT_FALSE(b.reserve(1));
  EXPECT_EQ(b.left(), 0U);
  b.give_back(60);
  EXPECT_EQ(b.left(), 60U);
}

TEST(budget, does_not_overflow_near_64_bits) {
  budget b{UINT64_MAX};
  EXPECT_TRUE(b.reserve(UINT64_MAX - 1));
  EXPECT_FALSE(b.reserve(UINT64_MAX));
  EXPECT_TRUE(b.reserve(1));
}

TEST(budget, a_lowered_limit_takes_nothing_away_and_gives_nothing_more) {
  budget b{100};
  EXPECT_TRUE(b.reserve(80));
  b.set_limit(50);
  EXPECT_EQ(b.reserved(), 80U);
  EXPECT_EQ(b.left(), 0U);
  EXPECT_FALSE(b.reserve(1));
  b.give_back(40);
  EXPECT_TRUE(b.reserve(10));
  EXPECT_FALSE(b.reserve(1));
}

TEST(budget, holds_under_any_number_of_threads) {
  constexpr std::uint64_t limit = 1'000;
  budget b{limit};
  std::atomic<std::uint64_t> held{0};
  std::atomic<bool> exceeded{false};
  std::vector<std::thread> threads;
  for (unsigned t = 0; t < 8; ++t) {
    threads.emplace_back([&, t] {
      for (std::uint64_t i = 0; i < 20'000; ++i) {
        const std::uint64_t bytes = (i * 7 + t) % 400 + 1;
        if (!b.reserve(bytes)) continue;
        if (held.fetch_add(bytes) + bytes > limit) exceeded = true;
        held.fetch_sub(bytes);
        b.give_back(bytes);
      }
    });
  }
  for (std::thread& t : threads) t.join();
  EXPECT_FALSE(exceeded);
  EXPECT_EQ(b.reserved(), 0U);
}

}  // namespace
}  // namespace gpumem
