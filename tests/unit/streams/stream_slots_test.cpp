#include "stream_slots.hpp"

#include <gtest/gtest.h>

namespace gpumem {
namespace {

stream_ref handle(std::uintptr_t number) { return {reinterpret_cast<void*>(number)}; }

struct slots_of_heap {
  heap blocks{1};
  stream_slots slots{blocks};
};

TEST(stream_slots, find_a_stream_by_its_key_until_it_is_forgotten) {
  slots_of_heap x;
  EXPECT_EQ(x.slots.find(7), idle_owner);
  const owner_id owner = x.slots.add_stream(handle(4096), 7, 0, true);
  EXPECT_EQ(x.slots.find(7), owner);
  EXPECT_EQ(x.slots.streams(), 1U);
  EXPECT_EQ(x.slots.in_use(), 1U);
  x.slots.forget_key(7);
  EXPECT_EQ(x.slots.find(7), idle_owner);
  EXPECT_EQ(x.slots.latest(handle(4096)), owner) << "the latest stream with that handle";
  EXPECT_EQ(x.slots.key_of_handle(handle(4096)), 7U);
  x.slots.remove(owner);
  EXPECT_EQ(x.slots.latest(handle(4096)), idle_owner);
  EXPECT_EQ(x.slots.key_of_handle(handle(4096)), std::nullopt);
  EXPECT_EQ(x.slots.in_use(), 0U);
}

TEST(stream_slots, continue_the_epochs_of_a_removed_slot) {
  slots_of_heap x;
  const owner_id owner = x.slots.add();
  x.slots[owner].epoch = 5;
  x.slots.remove(owner);
  EXPECT_EQ(x.slots.add(), owner) << "its number is reused";
  EXPECT_EQ(x.slots[owner].epoch, 6U);
  EXPECT_EQ(x.slots[owner].done, 5U);
}

TEST(stream_slots, give_a_graph_the_context_of_the_stream_that_captures_it) {
  slots_of_heap x;
  const owner_id stream = x.slots.add_stream(handle(4096), 7, 11, false);
  const owner_id graph = x.slots.add_graph(stream);
  EXPECT_TRUE(x.slots[graph].is_graph());
  EXPECT_EQ(x.slots[graph].foreign, 11U);
  EXPECT_EQ(x.slots[graph].captured.origin_key, 7U);
  EXPECT_EQ(x.slots.find_graph(x.slots[graph].key), graph);
  EXPECT_TRUE(x.blocks.pieces().is_region(graph));
  EXPECT_FALSE(x.slots[graph].serves_others()) << "it may run again";
  const owner_id withheld = x.slots.add_graph(graph);
  EXPECT_EQ(x.slots[withheld].captured.origin_key, 7U);
  x.slots[withheld].ended = true;
  EXPECT_TRUE(x.slots[withheld].serves_others());
}

TEST(stream_slots, forget_the_streams_that_are_chosen) {
  slots_of_heap x;
  const owner_id first = x.slots.add_stream(handle(4096), 1, 0, false);
  const owner_id second = x.slots.add_stream(handle(8192), 2, 0, false);
  x.slots.forget_streams_if([&](owner_id owner) { return owner == first; });
  EXPECT_EQ(x.slots.find(1), idle_owner);
  EXPECT_EQ(x.slots.find(2), second);
}

TEST(stream_slots, visit_a_watched_slot_until_it_has_no_fence) {
  slots_of_heap x;
  const owner_id owner = x.slots.add();
  x.slots[owner].fences.push_back({1, 0});
  x.slots.watch(owner);
  x.slots.watch(owner);
  int visits = 0;
  const auto visit = [&](owner_id visited) {
    EXPECT_EQ(visited, owner);
    ++visits;
  };
  x.slots.visit_watched(visit);
  EXPECT_EQ(visits, 1) << "once, however often it was watched";
  x.slots[owner].fences.clear();
  x.slots.visit_watched(visit);
  x.slots.visit_watched(visit);
  EXPECT_EQ(visits, 2);
}

}  // namespace
}  // namespace gpumem
