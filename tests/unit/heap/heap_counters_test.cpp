#include "heap_counters.hpp"

#include <gtest/gtest.h>

#include "unbacked_list.hpp"

namespace gpumem {
namespace {

block block_of(block_state state, std::uint64_t bytes, owner_id owner = idle_owner) {
  block made;
  made.bytes = bytes;
  made.state = state;
  made.owner = owner;
  made.segment_class = 1;
  return made;
}

TEST(heap_counters, counts_each_state_apart) {
  heap_counters counters{2};
  counters.add(block_of(block_state::live, 512, 1));
  counters.add(block_of(block_state::fenced, 1024, 1));
  counters.add(block_of(block_state::leaked, 1536, 1));
  counters.add(block_of(block_state::free, 2048, 1));
  counters.add(block_of(block_state::free, 4096));
  const heap_totals& totals = counters.totals();
  EXPECT_EQ(totals.live_bytes, 512U);
  EXPECT_EQ(totals.live_blocks, 1U);
  EXPECT_EQ(totals.fenced_bytes, 1024U);
  EXPECT_EQ(totals.fenced_blocks, 1U);
  EXPECT_EQ(totals.leaked_bytes, 1536U);
  EXPECT_EQ(totals.leaked_blocks, 1U);
  EXPECT_EQ(totals.cached_bytes, 2048U);
  EXPECT_EQ(totals.idle_bytes, 4096U);
  EXPECT_EQ(totals.free_blocks, 2U);
  EXPECT_EQ(counters.totals(0).free_bytes, 0U);
  EXPECT_EQ(counters.totals(1).free_bytes, 2048U + 4096) << "of the class of its segment";
}

TEST(heap_counters, removes_what_it_added) {
  heap_counters counters{2};
  const heap_counters before = counters;
  const block live = block_of(block_state::live, 512, 1);
  const block free = block_of(block_state::free, 512, 1);
  counters.add(live);
  counters.add(free);
  EXPECT_NE(counters, before);
  counters.remove(live);
  counters.remove(free);
  EXPECT_EQ(counters, before);
}

TEST(heap_counters, counts_no_segment_without_memory) {
  heap_counters counters{2};
  counters.add_segment();
  counters.add_memory(1, 4096);
  EXPECT_EQ(counters.totals().segments, 1U);
  EXPECT_EQ(counters.totals().segment_bytes, 4096U);
  EXPECT_EQ(counters.totals(1).segment_bytes, 4096U);
  const block whole = block_of(block_state::unbacked, 4096);
  counters.add(whole);
  EXPECT_EQ(counters.totals().segments, 0U);
  EXPECT_EQ(counters.totals().unbacked_bytes, 4096U);
  counters.remove(whole);
  block part = whole;
  part.next = 7;
  counters.add(part);
  EXPECT_EQ(counters.totals().segments, 1U);
}

TEST(unbacked_list, finds_each_block_until_it_is_erased) {
  block_table blocks;
  unbacked_list list{blocks};
  EXPECT_EQ(list.first(), no_block);
  const block_index a = blocks.take();
  const block_index b = blocks.take();
  const block_index c = blocks.take();
  for (const block_index each : {a, b, c}) list.insert(each);
  list.erase(b);
  EXPECT_EQ(list.first(), c);
  EXPECT_EQ(blocks[c].in_index.newer, a);
  list.erase(c);
  EXPECT_EQ(list.first(), a);
  EXPECT_EQ(blocks[a].in_index.newer, no_block);
  list.erase(a);
  EXPECT_EQ(list.first(), no_block);
}

}  // namespace
}  // namespace gpumem
