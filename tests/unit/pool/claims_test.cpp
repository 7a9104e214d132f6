#include "claims.hpp"

#include <gtest/gtest.h>

#include <atomic>
#include <map>
#include <random>
#include <thread>
#include <vector>

#include "bits.hpp"

namespace gpumem {
namespace {

constexpr address first = 0x2000'0000'0000;
address nth(std::uint32_t n) { return first + std::uint64_t{n} * 512; }
claim_word of(std::uint64_t bytes) { return {bytes, bytes, 1, true}; }

TEST(claim_word, says_size_request_owner_and_holder) {
  for (const std::uint64_t bytes : {std::uint64_t{512}, 64 * kib, 3 * gib, claim_word::most_units * 512}) {
    for (const std::uint64_t slack : {0U, 1U, 511U}) {
      for (const owner_id owner : {owner_id{0}, owner_id{1}, claim_word::most_owner}) {
        const claim_word live{bytes, bytes - slack, owner, true};
        EXPECT_EQ(live.held_by(), holder::program);
        EXPECT_TRUE(live.plainly_live());
        EXPECT_EQ(live.bytes(), bytes);
        EXPECT_EQ(live.units(), bytes / 512);
        EXPECT_EQ(live.requested_bytes(), bytes - slack);
        EXPECT_EQ(live.owner(), owner);

        const claim_word cached = live.cached();
        EXPECT_EQ(cached.held_by(), holder::cache);
        EXPECT_FALSE(cached.plainly_live());
        EXPECT_EQ(cached.bytes(), bytes);
        EXPECT_EQ(cached.owner(), owner);

        const claim_word again = cached.handed_out(bytes - 17);
        EXPECT_TRUE(again.plainly_live());
        EXPECT_EQ(again.requested_bytes(), bytes - 17);
        EXPECT_EQ(again.bytes(), bytes);
        EXPECT_EQ(again.owner(), owner);
      }
    }
  }
}

TEST(claim_word, an_odd_block_is_live_but_not_plainly) {
  const claim_word odd = claim_word{1024, 1000, 3, true}.odd();
  EXPECT_EQ(odd.held_by(), holder::program);
  EXPECT_FALSE(odd.plainly_live());
  EXPECT_EQ(odd.requested_bytes(), 1000U);
  EXPECT_EQ(odd.bits(), (claim_word{1024, 1000, 3, false}.bits()));
  EXPECT_EQ(claim_word{}.held_by(), holder::nobody);
}

TEST(claim, changes_once_however_many_try) {
  claim_table t;
  t.insert(nth(0), 0, of(512));
  for (int round = 0; round < 300; ++round) {
    std::atomic<int> won{0};
    std::vector<std::thread> all;
    const claim_word live = t[0].read();
    for (int k = 0; k < 3; ++k) {
      all.emplace_back([&] {
        if (t[0].change(live, live.cached())) ++won;
      });
    }
    for (std::thread& each : all) each.join();
    ASSERT_EQ(won.load(), 1);
    t[0].write(t[0].read().handed_out(512));
  }
}

TEST(claim_table, finds_what_begins_there_and_nothing_else) {
  claim_table t;
  EXPECT_EQ(t.find(0), no_block);
  EXPECT_EQ(t.find(first), no_block);
  t.insert(first, 5, of(1024));
  EXPECT_EQ(t.find(first), 5U);
  EXPECT_EQ(t.find(first + 512), no_block) << "inside";
  EXPECT_EQ(t.find(first + 1), no_block) << "not at a multiple of 512, which is all that is hashed";
  EXPECT_EQ(t[5].read().bytes(), 1024U);
  t.erase(5);
  EXPECT_EQ(t.find(first), no_block);
  EXPECT_EQ(t[5].read().held_by(), holder::nobody);
  EXPECT_EQ(t.size(), 0U);
}

// Blocks come and go, numbers and addresses are used again in other pairs, runs are closed by shifting back.
TEST(claim_table, agrees_with_a_map_under_random_use) {
  for (unsigned seed = 1; seed <= 6; ++seed) {
    std::mt19937_64 random{seed};
    // Segments far from each other, and addresses in steps of 2 MiB: what a hash could be bad at.
    const std::uint64_t step = seed % 2 == 0 ? 512 : 2 * mib;
    const std::uint32_t places = seed < 4 ? 300 : 20'000;
    claim_table t;
    std::map<address, block_index> expected;
    std::vector<block_index> spare(places);
    for (std::uint32_t i = 0; i < places; ++i) spare[i] = i;
    for (int n = 0; n < 60'000; ++n) {
      const address at = first + random() % places * step;
      const auto found = expected.find(at);
      ASSERT_EQ(t.find(at), found == expected.end() ? no_block : found->second) << "seed " << seed << ", step " << n;
      if (found == expected.end()) {
        std::swap(spare[random() % spare.size()], spare.back());
        t.insert(at, spare.back(), of(512));
        expected[at] = spare.back();
        spare.pop_back();
      } else {
        t.erase(found->second);
        spare.push_back(found->second);
        expected.erase(found);
      }
      ASSERT_EQ(t.size(), expected.size());
    }
    for (const auto& [at, i] : expected) ASSERT_EQ(t.find(at), i);
  }
}

TEST(claim_table, memory_is_bounded_by_the_most_that_were_in_it) {
  claim_table t;
  constexpr std::uint32_t most = 100'000;
  const std::uint64_t empty = t.bytes();
  for (std::uint32_t i = 0; i < most; ++i) t.insert(nth(i), i, of(512));
  const std::uint64_t full = t.bytes();
  // 16 B a claim, 16 to 32 B of slots, as much again of outgrown ones, and claims are stored in parts that double.
  EXPECT_LE(full - empty, std::uint64_t{most} * 96);
  for (int round = 0; round < 3; ++round) {
    for (std::uint32_t i = 0; i < most; ++i) t.erase(i);
    for (std::uint32_t i = 0; i < most; ++i) t.insert(nth(most - i), i, of(512));
  }
  EXPECT_EQ(t.bytes(), full) << "nothing more is taken once the busiest moment has passed";
}

// What is in the table throughout is found by a thread without the lock while others are entered and the table grows.
TEST(claim_table, finds_what_stays_while_it_grows) {
  claim_table t;
  constexpr std::uint32_t stays = 64;
  constexpr std::uint32_t more = 50'000;
  for (std::uint32_t i = 0; i < stays; ++i) t.insert(nth(i), i, of(512));
  std::atomic<bool> stop{false};
  std::uint64_t looks = 0;
  std::uint64_t wrong = 0;
  std::thread reader{[&] {
    for (std::uint32_t n = 0; !stop.load(std::memory_order_relaxed) || n < stays; ++n) {
      const std::uint32_t i = n % stays;
      ++looks;
      if (t.find(nth(i)) != i || t[i].read().bytes() != 512) ++wrong;
      if (t.find(nth(more + stays + i)) != no_block) ++wrong;  // never entered
    }
  }};
  for (std::uint32_t i = stays; i < more; ++i) t.insert(nth(i), i, of(1024));
  stop = true;
  reader.join();
  EXPECT_GE(looks, stays);
  EXPECT_EQ(wrong, 0U);
}

// While entries are taken out and moved, a reader may miss one and then takes the lock; it never finds a wrong one.
TEST(claim_table, a_late_reader_never_finds_another_block) {
  claim_table t;
  constexpr std::uint32_t all = 500;
  for (std::uint32_t i = 0; i < all; ++i) t.insert(nth(i), i, of(512));
  std::atomic<bool> stop{false};
  std::uint64_t wrong = 0;
  std::thread reader{[&] {
    for (std::uint32_t n = 0; !stop.load(std::memory_order_relaxed); ++n) {
      const block_index found = t.find(nth(n % all));
      if (found != no_block && found != n % all) ++wrong;
    }
  }};
  std::mt19937 random{1};
  for (int n = 0; n < 200'000; ++n) {
    const auto i = static_cast<block_index>(random() % all);
    if (t.find(nth(i)) == i) {
      t.erase(i);
    } else {
      t.insert(nth(i), i, of(512));
    }
  }
  stop = true;
  reader.join();
  EXPECT_EQ(wrong, 0U);
  for (std::uint32_t i = 0; i < all; ++i) {
    const block_index found = t.find(nth(i));
    EXPECT_TRUE(found == i || found == no_block);
  }
}

}  // namespace
}  // namespace gpumem
