#include "address_map.hpp"

#include <gtest/gtest.h>

#include <random>
#include <unordered_map>
#include <vector>

namespace gpumem {
namespace {

TEST(address_map, agrees_with_a_standard_map_under_random_use) {
  std::mt19937_64 random{7};
  address_map map;
  std::unordered_map<std::uint64_t, block_index> model;
  std::vector<std::uint64_t> keys;
  for (int step = 0; step < 200'000; ++step) {
    const std::uint64_t key = (random() % 4096 + 1) * 512;  // few keys, so that clusters form and break up
    const auto known = model.find(key);
    ASSERT_EQ(map.find(key), known == model.end() ? no_block : known->second);
    if (known == model.end()) {
      map.insert(key, static_cast<block_index>(step));
      model.emplace(key, static_cast<block_index>(step));
    } else {
      map.erase(key);
      model.erase(known);
    }
    ASSERT_EQ(map.size(), model.size());
  }
  for (const auto& [key, index] : model) ASSERT_EQ(map.find(key), index);
}

TEST(address_map, stops_allocating_once_it_has_seen_its_busiest_moment) {
  address_map map;
  for (std::uint64_t k = 1; k <= 10'000; ++k) map.insert(k << 21, static_cast<block_index>(k));
  const std::uint64_t bytes = map.bytes();
  EXPECT_LE(bytes, 10'000U * 4 * 16);
  for (std::uint64_t round = 0; round < 20; ++round) {
    for (std::uint64_t k = 1; k <= 10'000; ++k) map.erase((k + round * 10'000) << 21);
    for (std::uint64_t k = 1; k <= 10'000; ++k)
      map.insert((k + (round + 1) * 10'000) << 21, static_cast<block_index>(k));
  }
  EXPECT_EQ(map.bytes(), bytes);
}

}  // namespace
}  // namespace gpumem
