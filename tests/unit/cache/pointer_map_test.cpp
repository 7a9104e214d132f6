#include "pointer_map.hpp"

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
owner_word of(std::uint64_t bytes) { return owner_word::plain(bytes, bytes, 1); }

TEST(owner_word, says_size_request_owner_and_holder) {
  for (const std::uint64_t bytes : {std::uint64_t{512}, 64 * kib, 3 * gib, owner_word::most_units * 512}) {
    for (const std::uint64_t slack : {0U, 1U, 511U}) {
      for (const owner_id owner : {owner_id{0}, owner_id{1}, owner_word::most_owner}) {
        const owner_word live = owner_word::plain(bytes, bytes - slack, owner);
        EXPECT_EQ(live.held_by(), holder::program);
        EXPECT_TRUE(live.plainly_live());
        EXPECT_EQ(live.bytes(), bytes);
        EXPECT_EQ(live.units(), bytes / 512);
        EXPECT_EQ(live.requested_bytes(), bytes - slack);
        EXPECT_EQ(live.slack_bytes(), slack);
        EXPECT_EQ(live.owner(), owner);

        const owner_word cached = live.cached();
        EXPECT_EQ(cached.held_by(), holder::cache);
        EXPECT_FALSE(cached.plainly_live());
        EXPECT_EQ(cached.bytes(), bytes);
        EXPECT_EQ(cached.owner(), owner);
        const owner_word again = cached.handed_out(17);
        EXPECT_TRUE(again.plainly_live());
        EXPECT_EQ(again.requested_bytes(), bytes - 17);
        EXPECT_EQ(again.bytes(), bytes);
        EXPECT_EQ(again.owner(), owner);
      }
    }
  }
}

TEST(owner_word, an_odd_block_is_live_but_not_plainly) {
  const owner_word odd = owner_word::plain(1024, 1000, 3).marked_needs_lock();
  EXPECT_EQ(odd.held_by(), holder::program);
  EXPECT_FALSE(odd.plainly_live());
  EXPECT_EQ(odd.slack_bytes(), 24U);
  EXPECT_EQ(owner_word::needs_lock(24).slack_bytes(), 24U);
  EXPECT_EQ(owner_word::needs_lock(24).held_by(), holder::program);
  EXPECT_FALSE(owner_word::needs_lock(24).plainly_live());
  EXPECT_EQ(owner_word{}.held_by(), holder::nobody);
  EXPECT_FALSE(owner_word{}.plainly_live()) << "nobody's is not live, whoever owner 0 is";
}

/// Inserts like the pool, which empties the caches first.
slot_index insert(pointer_map& t, address at, block_index block, owner_word w) {
  if (!t.has_room()) t.grow();
  return t.insert(at, block, w);
}
void erase(pointer_map& t, address at) { t.erase(t.find(at).index); }

/// The block that the table has at the address, or `no_block`.
block_index block_at(const pointer_map& t, address at) {
  const pointer_map::lookup seen = t.find(at);
  return seen.word().held_by() != holder::nobody ? t.block_of(seen.index) : no_block;
}

TEST(pointer_slot, changes_once_however_many_try) {
  pointer_map t;
  pointer_slot& c = t[t.insert(nth(0), 0, of(512))];
  for (int round = 0; round < 300; ++round) {
    std::atomic<int> won{0};
    std::vector<std::thread> all;
    const owner_word live = c.read();
    for (int k = 0; k < 3; ++k) {
      all.emplace_back([&] {
        if (c.change(live, live.cached())) ++won;
      });
    }
    for (std::thread& each : all) each.join();
    ASSERT_EQ(won.load(), 1);
    c.write(c.read().handed_out(0));
  }
}

TEST(pointer_map, finds_what_begins_there_and_nothing_else) {
  pointer_map t;
  EXPECT_EQ(block_at(t, 0), no_block);
  EXPECT_EQ(block_at(t, first), no_block);
  const slot_index place = t.insert(first, 5, of(1024));
  EXPECT_EQ(block_at(t, first), 5U);
  EXPECT_EQ(t.find(first).index, place);
  EXPECT_EQ(block_at(t, first + 512), no_block) << "inside";
  EXPECT_EQ(block_at(t, first + 1), no_block) << "not at a multiple of 512, which is all that is hashed";
  EXPECT_EQ(block_at(t, 0), no_block) << "a place that was never used has the address 0";
  EXPECT_EQ(t[place].read().bytes(), 1024U);
  t.erase(place);
  EXPECT_EQ(block_at(t, first), no_block);
  EXPECT_EQ(t[place].read().held_by(), holder::nobody);
  EXPECT_EQ(t.size(), 0U);
}

TEST(pointer_map, a_slot_stays_where_it_is_until_the_table_grows) {
  pointer_map t;
  std::mt19937_64 random{7};
  std::map<address, slot_index> expected;
  for (int n = 0; n < 20'000; ++n) {
    const address at = nth(static_cast<std::uint32_t>(random() % 700));
    if (const auto found = expected.find(at); found != expected.end()) {
      t.erase(found->second);
      expected.erase(found);
    } else if (!t.has_room()) {
      t.grow();
      for (auto& [begin, place] : expected) place = t.find(begin).index;
    } else {
      expected[at] = t.insert(at, 1, of(512));
    }
    for (const auto& [begin, place] : expected) ASSERT_EQ(t.find(begin).index, place);
  }
}

// The slot of an address in an otherwise empty table of the first size.
slot_index home(address at) {
  pointer_map t;
  return t.insert(at, 0, of(512));
}

constexpr slot_index slots_of_a_line = 4;

// So the processor prefetches a run of blocks that passes between threads, and small neighbours of two threads share no
// cache line.
TEST(pointer_map, a_page_further_is_a_line_further_and_small_neighbours_share_none) {
  const slot_index all = 8192;
  for (std::uint32_t n = 0; n < 200; ++n) {
    const slot_index step = (home(nth(n + 8)) - home(nth(n))) % all;
    EXPECT_TRUE(step == slots_of_a_line || step == slots_of_a_line + 1) << n << ": " << step;
    for (std::uint32_t k = 1; k < 8; ++k) {
      EXPECT_NE(home(nth(n)) / slots_of_a_line, home(nth(n + k)) / slots_of_a_line) << n << " and " << k;
    }
  }
}

// Counts the slots that a search visits, in the fullest tables, with blocks at any distance from each other.
TEST(pointer_map, no_distance_between_blocks_makes_searches_long) {
  for (const std::uint32_t most : {4096U, 8192U, 65536U}) {
    for (const std::uint64_t step : {std::uint64_t{512}, std::uint64_t{1536}, std::uint64_t{3584}, 4 * kib, 10 * kib,
                                     64 * kib, 192 * kib, 2 * mib, 3 * mib, 20 * mib, 64 * mib}) {
      pointer_map alone;
      pointer_map t;
      while (t.size() < most) insert(t, first + t.size() * step, 0, of(512));
      std::uint64_t looks = 0;
      for (std::uint32_t i = 0; i < most; ++i) {
        // In an otherwise empty table of that size.
        const address at = first + i * step;
        if (alone.bytes() != t.bytes()) {
          for (std::uint32_t k = 0; alone.bytes() < t.bytes(); ++k) insert(alone, nth(k), 0, of(512));
          for (std::uint32_t k = 0; alone.size() != 0; ++k) erase(alone, nth(k));
        }
        const slot_index from = alone.insert(at, 0, of(512));
        alone.erase(from);
        const auto places = static_cast<slot_index>(t.bytes() / 20);
        looks += 1 + (t.find(at).index - from) % places;
      }
      EXPECT_LE(looks, most * 4U) << most << " blocks each " << step << " B";
    }
  }
}

// Blocks come and go. Numbers and addresses are reused in other pairs, and slots are reused in runs.
TEST(pointer_map, agrees_with_a_map_under_random_use) {
  for (unsigned seed = 1; seed <= 6; ++seed) {
    std::mt19937_64 random{seed};
    // Hard cases for a hash: segments far from each other, and addresses in steps of 2 MiB.
    const std::uint64_t step = seed % 2 == 0 ? 512 : 2 * mib;
    const std::uint32_t places = seed < 4 ? 300 : 20'000;
    pointer_map t;
    std::map<address, block_index> expected;
    std::vector<block_index> spare(places);
    for (std::uint32_t i = 0; i < places; ++i) spare[i] = i;
    for (int n = 0; n < 60'000; ++n) {
      const address at = first + random() % places * step;
      const auto found = expected.find(at);
      ASSERT_EQ(block_at(t, at), found == expected.end() ? no_block : found->second) << "seed " << seed << ", " << n;
      if (found == expected.end()) {
        std::swap(spare[random() % spare.size()], spare.back());
        insert(t, at, spare.back(), of(512));
        expected[at] = spare.back();
        spare.pop_back();
      } else {
        erase(t, at);
        spare.push_back(found->second);
        expected.erase(found);
      }
      ASSERT_EQ(t.size(), expected.size());
    }
    for (const auto& [at, i] : expected) ASSERT_EQ(block_at(t, at), i);
  }
}

TEST(pointer_map, memory_is_bounded_by_the_most_that_were_in_it) {
  pointer_map t;
  constexpr std::uint32_t most = 100'000;
  for (std::uint32_t i = 0; i < most; ++i) insert(t, nth(i), i, of(512));
  const std::uint64_t full = t.bytes();
  EXPECT_LE(full, std::uint64_t{most} * 80) << "16 B a pointer_slot and 4 B for its block, a quarter to half full";
  for (std::uint32_t round = 1; round < 20; ++round) {  // with addresses that were never there before
    for (std::uint32_t i = 0; i < most; ++i) {
      erase(t, nth((round - 1) * most + i));
      insert(t, nth(round * most + i), i, of(512));
    }
  }
  EXPECT_EQ(t.bytes(), full) << "nothing more is taken once the busiest moment has passed";
  for (std::uint32_t i = 0; i < most; ++i) ASSERT_EQ(block_at(t, nth(19 * most + i)), i);
}

// A thread without the lock finds every permanent entry while other entries come and go. For a removed address it finds
// no holder, or the present block.
TEST(pointer_map, readers_without_the_lock_find_what_stays_and_never_another_block) {
  pointer_map t;
  constexpr std::uint32_t all = 500;
  const auto size_of = [](std::uint32_t i) { return std::uint64_t{i + 1} * 512; };
  for (std::uint32_t i = 0; i < all; ++i) insert(t, nth(i), i, of(size_of(i)));
  while (!t.has_room()) t.grow();  // not any more while the reader is there
  std::atomic<bool> stop{false};
  std::uint64_t looks = 0;
  std::uint64_t wrong = 0;
  std::thread reader{[&] {
    for (std::uint32_t n = 0; !stop.load(std::memory_order_relaxed) || n < all; ++n) {
      const std::uint32_t i = n % all;
      const owner_word seen = t.find(nth(i)).word();
      ++looks;
      const bool stays = i % 2 == 0;
      if (seen.held_by() == holder::nobody ? stays : seen.bytes() != size_of(i)) ++wrong;
      if (t.find(nth(all + i)).word().held_by() != holder::nobody) ++wrong;  // never entered
    }
  }};
  std::mt19937 random{1};
  for (int n = 0; n < 200'000; ++n) {
    const auto i = static_cast<block_index>(random() % all) | 1U;
    if (block_at(t, nth(i)) == i) {
      erase(t, nth(i));
    } else if (t.has_room()) {
      t.insert(nth(i), i, of(size_of(i)));
    }
  }
  stop = true;
  reader.join();
  EXPECT_GE(looks, all);
  EXPECT_EQ(wrong, 0U);
}

}  // namespace
}  // namespace gpumem
