// The rules by which requests go to pools, and by which memory leaves them.
#include "pools.hpp"

#include <gtest/gtest.h>

#include <thread>

#include "fake_memory.hpp"

namespace gpumem::torch_tests {
namespace {

constexpr pool_id first{1, 0};
constexpr pool_id second{2, 0};
const cudaStream_t stream = stream_number(10);

/// A MemPool with idle memory.
void add_mem_pool(pool_table& pools, const pool_id& id, bool own = false) {
  private_pool& pool = pools[id];
  pool.source = std::make_shared<named_source>(!own);
  pool.uses = 1;
  pool.is_mem_pool = pool.object_alive = true;
  pool.is_own = own;
}
bool every(cudaStream_t /*stream*/) { return true; }

TEST(torch_pools, the_innermost_pool_that_takes_the_stream_serves_a_request) {
  pool_table pools{capture_news::told};
  EXPECT_EQ(pools.route_of(stream), no_pool);
  pools.begin_route(first, every);
  pools.begin_route(second, [](cudaStream_t asked) { return asked != stream; });
  EXPECT_EQ(pools.route_of(stream), first);
  EXPECT_EQ(pools.route_of(nullptr), second);
  EXPECT_THROW(pools.begin_route(first, every), std::runtime_error);
  pools.end_route(second);
  EXPECT_THROW(pools.end_route(second), std::runtime_error);
  EXPECT_EQ(pools.route_of(nullptr), first);
}

TEST(torch_pools, idle_memory_of_a_mempool_goes_back_and_a_graphs_stays) {
  pool_table pools{capture_news::told};
  add_mem_pool(pools, first);
  pools[second].source = std::make_shared<named_source>();  // of graphs only
  pools[second].uses = 1;
  ASSERT_EQ(pools.sources_to_give_back().size(), 1U);
  EXPECT_EQ(pools.sources_to_give_back()[0], pools.find(first)->source);
  pools.begin_route(first, every);
  pools.capture_begins();
  static_cast<void>(pools.note_request(first, true));
  EXPECT_TRUE(pools.sources_to_give_back().empty());
  pools.end_route(first);
  EXPECT_TRUE(pools.sources_to_give_back().empty()) << "the graph holds a use";
  --pools.find(first)->uses;
  EXPECT_EQ(pools.sources_to_give_back().size(), 1U) << "the graph is gone";
}

TEST(torch_pools, a_release_that_may_be_the_mempools_own_keeps_the_graphs_memory) {
  pool_table pools{capture_news::told};
  add_mem_pool(pools, first);
  pools.find(first)->captured = true;
  EXPECT_FALSE(pools.may_be_written_by_graph(first, *pools.find(first)));
  std::thread{[&] { pools.find(first)->released_by.insert(std::this_thread::get_id()); }}.join();
  EXPECT_TRUE(pools.may_be_written_by_graph(first, *pools.find(first))) << "another thread is between two calls";
}

TEST(torch_pools, without_news_of_captures_a_pool_that_was_captured_keeps_its_memory) {
  pool_table pools{capture_news::not_told};
  add_mem_pool(pools, first);
  EXPECT_FALSE(pools.may_capture());
  pools.begin_route(first, every);
  EXPECT_TRUE(pools.may_capture()) << "until a request shows a stream that does not capture";
  static_cast<void>(pools.note_request(first, false));
  EXPECT_FALSE(pools.may_capture());
  EXPECT_EQ(pools.sources_to_give_back().size(), 1U);
  static_cast<void>(pools.note_request(first, true));
  EXPECT_TRUE(pools.sources_to_give_back().empty());
}

TEST(torch_pools, own_memory_does_not_go_back_during_a_capture) {
  pool_table pools{capture_news::told};
  add_mem_pool(pools, first, true);
  pools.begin_route(second, every);
  EXPECT_EQ(pools.sources_to_give_back().size(), 1U);
  pools.capture_begins();
  EXPECT_TRUE(pools.may_capture());
  EXPECT_TRUE(pools.sources_to_give_back().empty());
}

TEST(torch_pools, lends_only_what_no_graph_writes) {
  pool_table pools{capture_news::told};
  add_mem_pool(pools, first);
  add_mem_pool(pools, second);
  pools[second].use_on_oom = true;
  ASSERT_EQ(pools.lenders().size(), 1U);
  EXPECT_EQ(pools.lenders()[0].first, second);
  pools[second].captured = true;
  ++pools[second].uses;
  EXPECT_TRUE(pools.lenders().empty());
}

TEST(torch_pools, own_memory_of_an_ended_pool_stays_known_until_it_is_empty) {
  pool_table pools{capture_news::told};
  add_mem_pool(pools, first, true);
  EXPECT_EQ(pools.end_pool(first), nullptr) << "it has a use";
  --pools.find(first)->uses;
  const auto source = pools.end_pool(first);
  ASSERT_NE(source, nullptr);
  EXPECT_EQ(pools.find(first), nullptr);
  ASSERT_EQ(pools.ended_sources().size(), 1U);
  pools.forget_empty();
  EXPECT_EQ(pools.ended_sources().size(), 1U) << "a tensor still has some of it";
  EXPECT_EQ(pools.sources().size(), 1U);
  EXPECT_EQ(pools.end_pool(second), nullptr);
}

}  // namespace
}  // namespace gpumem::torch_tests
