#include "stream_graphs.hpp"

#include "ordered_heap.hpp"

namespace gpumem {
namespace {

TEST(stream_graphs, a_graph_keeps_its_blocks_until_it_is_released) {
  ordered_heap t{stream_id_mode::notify};
  const stream_ref s = t.device.create_stream();
  const result<owner_id> g = t.graphs.begin_capture(t.slot(s));
  ASSERT_TRUE(g.ok());
  const block_index i = t.blocks.carve(t.blocks.free_blocks().best_fit(0, *g, true, 512, 512), 512, 512);
  t.blocks.release(i, *g, t.streams[*g].epoch, false);
  t.streams[*g].dirty = true;
  const std::uint64_t graph = t.graphs.end_capture(t.slot(s));
  EXPECT_EQ(t.streams.cover(*g).code(), errc::unsupported);
  EXPECT_EQ(t.graphs.release(graph + 1).code(), errc::invalid_argument);
  ASSERT_TRUE(t.graphs.release(graph).ok());
  EXPECT_EQ(t.graphs.release(graph).code(), errc::invalid_argument);
  t.record_fences();
  t.streams.poll();
  EXPECT_EQ(t.blocks.totals().cached_bytes, 0U);
}

TEST(stream_graphs, a_graph_that_is_still_captured_cannot_be_released) {
  ordered_heap t;
  const owner_id o = t.slot(t.device.create_stream());
  ASSERT_TRUE(t.graphs.begin_capture(o).ok());
  EXPECT_EQ(t.graphs.release(1).code(), errc::invalid_argument);
  const owner_id g = t.streams[o].graph;
  EXPECT_FALSE(t.streams[g].serves_others());
  EXPECT_EQ(t.graphs.end_capture(o), 1U);
  ++t.streams[g].references;
  ASSERT_TRUE(t.graphs.release(1).ok());
  EXPECT_TRUE(t.streams[g].serves_others());
  --t.streams[g].references;
}

TEST(stream_graphs, what_another_stream_of_a_capture_freed_is_nobodys_until_the_graph_is_gone) {
  ordered_heap t;
  const owner_id own = t.slot(t.device.create_stream());
  const owner_id other = t.slot(t.device.create_stream());
  const result<owner_id> graph = t.graphs.begin_capture(own);
  ASSERT_TRUE(graph.ok());
  EXPECT_EQ(t.graphs.owner_of_free(*graph, t.streams[own].key), *graph);
  const owner_id aside = t.graphs.owner_of_free(*graph, t.streams[other].key);
  EXPECT_NE(aside, *graph);
  EXPECT_EQ(t.graphs.owner_of_free(*graph, t.streams[other].key), aside);
  EXPECT_FALSE(t.streams[aside].serves_others());
  const std::uint64_t number = t.graphs.end_capture(own);
  ASSERT_TRUE(t.graphs.release(number).ok());
  t.let_time_pass();
  EXPECT_FALSE(t.streams[aside].in_use);
  EXPECT_FALSE(t.streams[*graph].in_use);
}

TEST(stream_graphs, a_region_is_open_until_it_is_given_up) {
  ordered_heap t;
  const stream_ref s = t.device.create_stream();
  const std::uint64_t number = t.graphs.open_region(s, *t.streams.keys().key_of(s));
  EXPECT_NE(t.graphs.find(number), idle_owner);
  EXPECT_EQ(t.graphs.find(number + 1), idle_owner);
  EXPECT_TRUE(t.graphs.release(number).ok());
  EXPECT_EQ(t.graphs.find(number), idle_owner);
  EXPECT_EQ(t.graphs.release(number).code(), errc::invalid_argument) << "given up already";
}

}  // namespace
}  // namespace gpumem
