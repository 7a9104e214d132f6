#include "free_lists.hpp"

#include <gtest/gtest.h>

namespace gpumem {
namespace {

constexpr std::uint64_t base = 0x1000'0000;

/// Four neighbours of 1, 2, 3 and 4 KiB.
struct four_blocks {
  block_table blocks;
  free_lists lists{blocks, 1};
  owner_id idle = lists.add_owner();
  owner_id a = lists.add_owner();
  owner_id b = lists.add_owner();
  std::vector<block_index> at;

  four_blocks() {
    std::uint64_t begin = base;
    for (std::uint64_t kib = 1; kib <= 4; ++kib) {
      at.push_back(blocks.take());
      blocks[at.back()].begin = begin;
      blocks[at.back()].bytes = kib << 10;
      begin += kib << 10;
    }
    for (std::size_t i = 0; i + 1 < at.size(); ++i) {
      blocks[at[i]].next = at[i + 1];
      blocks[at[i + 1]].prev = at[i];
    }
  }
  void free(std::size_t i, owner_id owner, std::uint64_t epoch = 0) {
    blocks[at[i]].state = block_state::free;
    blocks[at[i]].owner = owner;
    blocks[at[i]].in_index.epoch = epoch;
    lists.insert(at[i], lists.newest(owner));
  }
};

TEST(free_lists, keeps_the_blocks_of_an_owner_in_the_order_of_their_frees) {
  four_blocks x;
  x.free(2, x.a, 1);
  x.free(0, x.a, 2);
  EXPECT_EQ(x.lists.oldest(x.a), x.at[2]);
  EXPECT_EQ(x.blocks[x.at[2]].in_index.newer, x.at[0]);
  EXPECT_EQ(x.lists.newest(x.a), x.at[0]);
  EXPECT_TRUE(x.lists.validate(2).ok());
  x.lists.erase(x.at[2]);
  EXPECT_EQ(x.lists.oldest(x.a), x.at[0]);
  EXPECT_TRUE(x.lists.validate(1).ok());
}

TEST(free_lists, lists_an_owner_while_it_has_a_free_block) {
  four_blocks x;
  x.free(0, x.idle);
  EXPECT_TRUE(x.lists.owners().empty()) << "idle memory has no owner";
  x.free(1, x.a);
  x.free(3, x.b);
  EXPECT_EQ(x.lists.owners(), (std::vector{x.a, x.b}));
  x.lists.erase(x.at[1]);
  EXPECT_EQ(x.lists.owners(), (std::vector{x.b}));
  EXPECT_TRUE(x.lists.empty(x.a));
  x.lists.remove_owner(x.a);
  EXPECT_EQ(x.lists.next_owner(), x.a);
  EXPECT_EQ(x.lists.add_owner(), x.a) << "its number is reused";
}

TEST(free_lists, searches_the_blocks_of_the_owner_and_idle_ones) {
  four_blocks x;
  x.free(1, x.idle);
  x.free(2, x.a);
  x.free(3, x.b);
  EXPECT_EQ(x.lists.best_fit(0, x.a, true, 512, 512), x.at[1]);
  EXPECT_EQ(x.lists.best_fit(0, x.a, false, 512, 512), x.at[2]);
  EXPECT_EQ(x.lists.best_fit(0, x.a, true, 4096, 512), no_block) << "another owner's";
  EXPECT_EQ(x.lists.best_fit(0, x.b, true, 2560, 4096), no_block) << "4 KiB, of which 2.5 KiB from 4 KiB on do not fit";
  EXPECT_EQ(x.lists.lowest_fit(0, x.b, 1024, 512), x.at[1]);
  EXPECT_EQ(x.lists.lowest_fit(0, x.b, 4096, 512), x.at[3]) << "exact";
  EXPECT_EQ(x.lists.largest_bytes(), 4096U);
}

TEST(free_lists, notes_an_owned_block_that_has_an_idle_neighbour) {
  four_blocks x;
  x.free(0, x.a);
  EXPECT_EQ(x.lists.take_beside_idle(x.a), no_block);
  x.free(1, x.idle);
  x.free(2, x.b);
  EXPECT_EQ(x.lists.take_beside_idle(x.a), x.at[0]) << "the idle block came later";
  EXPECT_EQ(x.lists.take_beside_idle(x.a), no_block) << "once";
  EXPECT_EQ(x.lists.take_beside_idle(x.b), x.at[2]) << "the owned block came later";
}

TEST(free_lists, forgets_a_note_that_no_longer_holds) {
  four_blocks x;
  x.free(0, x.a);
  x.free(1, x.idle);
  x.lists.erase(x.at[1]);
  x.blocks[x.at[1]].state = block_state::live;
  EXPECT_EQ(x.lists.take_beside_idle(x.a), no_block);
}

TEST(free_lists, visits_all_blocks_of_an_owner_with_more_notes_than_blocks) {
  four_blocks x;
  x.free(0, x.a);
  EXPECT_FALSE(x.lists.take_unnoted(x.a));
  for (int i = 0; i < 3; ++i) {  // each notes the same block again
    x.free(1, x.idle);
    x.lists.erase(x.at[1]);
  }
  EXPECT_TRUE(x.lists.take_unnoted(x.a));
  EXPECT_FALSE(x.lists.take_unnoted(x.a)) << "once";
}

TEST(free_lists, names_what_its_blocks_contradict) {
  four_blocks x;
  x.free(0, x.a, 2);
  x.free(2, x.a, 3);
  EXPECT_EQ(x.lists.validate(3).message(), "heap: free blocks that no index holds, count at 0x1");
  x.blocks[x.at[2]].in_index.epoch = 1;
  EXPECT_NE(x.lists.validate(2).message().find("an owner's list out of order"), std::string::npos);
  x.blocks[x.at[2]].owner = x.b;
  EXPECT_NE(x.lists.validate(2).message().find("a block in another owner's list"), std::string::npos);
}

}  // namespace
}  // namespace gpumem
