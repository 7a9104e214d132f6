// Memory of a MemPool with an allocator of its own: blocks, waits for streams, what goes back, and the counted figures.
#include <gtest/gtest.h>

#include <random>
#include <utility>
#include <vector>

#include "bits.hpp"
#include "fake_memory.hpp"
#include "pieces.hpp"

namespace gpumem::torch_tests {
namespace {

constexpr pool_id pool{1, 0};

struct tested_memory {
  fake_streams streams;
  fake_supplier::books books;
  own_memory memory{0, std::make_unique<fake_supplier>(books), streams};
  device_stream own{0, stream_number(10)};
  device_stream other{0, stream_number(20)};
  device_stream far{1, stream_number(20)};

  void* take(std::size_t bytes) {
    refusal why;
    return memory.allocate_block({bytes, own.handle}, why);
  }
  void free_used_by(void* ptr, const std::vector<device_stream>& users) {
    for (const device_stream& each : users) memory.record_use(ptr, each);
    memory.free_block(ptr);
  }
  memory_totals counted() const {
    memory_totals totals;
    memory.count(totals, pool);
    return totals;
  }
};

TEST(own_memory, small_blocks_share_a_segment_and_a_free_one_merges_with_its_neighbours) {
  tested_memory x;
  void* const first = x.take(1000);
  void* const second = x.take(512);
  EXPECT_EQ(static_cast<char*>(second) - static_cast<char*>(first), 1024);
  EXPECT_EQ(x.books.segments.size(), 1U);
  x.memory.free_block(first);
  x.memory.free_block(second);
  EXPECT_EQ(x.counted().split, 0U);
  EXPECT_EQ(x.memory.take_idle({2 * mib, x.own.handle}), first);
}

TEST(own_memory, takes_segments_in_pytorchs_sizes) {
  EXPECT_EQ(own_blocks::segment_bytes(512), 2 * mib);
  EXPECT_EQ(own_blocks::segment_bytes(mib), 2 * mib);
  EXPECT_EQ(own_blocks::segment_bytes(mib + 512), 20 * mib);
  EXPECT_EQ(own_blocks::segment_bytes(10 * mib), 10 * mib);
  EXPECT_EQ(own_blocks::segment_bytes(11 * mib), 12 * mib);
}

TEST(own_memory, a_stream_gets_the_smallest_free_block_that_fits_and_never_anothers) {
  tested_memory x;
  void* const large = x.take(8192);
  void* const between = x.take(512);
  void* const small = x.take(4096);
  void* const end = x.take(512);
  x.memory.free_block(large);
  x.memory.free_block(small);
  EXPECT_EQ(x.take(4000), small);
  refusal why;
  EXPECT_NE(x.memory.allocate_block({8192, x.other.handle}, why), large);
  EXPECT_EQ(x.books.segments.size(), 2U);
  for (void* const each : {between, small, end}) x.memory.free_block(each);
}

TEST(own_memory, a_block_waits_for_each_stream_that_used_it) {
  tested_memory x;
  void* const block = x.take(mib);
  x.free_used_by(block, {x.other, x.far, x.other, x.own});
  EXPECT_EQ(x.streams.recorded, 2U) << "one event for each other stream";
  EXPECT_EQ(x.counted().fenced, 1U);
  EXPECT_NE(x.take(mib), block);
  x.streams.done = {x.other};
  EXPECT_EQ(x.memory.take_idle({mib, x.own.handle}), nullptr);
  x.streams.done.insert(x.far);
  EXPECT_EQ(x.memory.take_idle({mib, x.own.handle}), block);
  EXPECT_TRUE(x.streams.events.empty()) << "each event is destroyed once";
}

TEST(own_memory, the_event_of_a_later_free_serves_earlier_ones) {
  tested_memory x;
  void* const first = x.take(512);
  void* const second = x.take(512);
  x.streams.fails = true;
  x.free_used_by(first, {x.other});
  x.streams.fails = false;
  x.free_used_by(second, {x.other});
  EXPECT_EQ(x.streams.recorded, 1U);
  x.streams.done = {x.other};
  x.streams.queries = 0;
  EXPECT_EQ(x.memory.take_idle({1024, x.own.handle}), first) << "both are free, and merged";
  EXPECT_EQ(x.streams.queries, 1);
}

TEST(own_memory, nothing_is_recorded_or_queried_on_a_stream_that_captures) {
  tested_memory x;
  void* const used_before = x.take(512);
  void* const used_within = x.take(512);
  x.free_used_by(used_before, {x.other});
  x.streams.capturing = {x.other};
  x.streams.queries = 0;
  x.free_used_by(used_within, {x.other});
  EXPECT_EQ(x.memory.take_idle({2 * mib, x.own.handle}), nullptr);
  EXPECT_EQ(x.streams.recorded, 1U);
  EXPECT_EQ(x.streams.queries, 0);
  x.streams.capturing.clear();
  x.streams.done = {x.other};
  EXPECT_EQ(x.memory.take_idle({1024, x.own.handle}), used_before);
  EXPECT_EQ(x.streams.recorded, 2U);
}

TEST(own_memory, gives_back_segments_that_are_wholly_free) {
  tested_memory x;
  void* const kept = x.take(512);
  void* const gone = x.take(30 * mib);
  x.free_used_by(gone, {x.other});
  EXPECT_TRUE(x.memory.give_back()) << "the host waited for the GPU";
  EXPECT_EQ(x.books.went, std::vector{reinterpret_cast<std::uintptr_t>(gone)});
  EXPECT_EQ(x.books.reserved, 2 * mib);
  EXPECT_FALSE(x.memory.is_empty());
  x.memory.free_block(kept);
  EXPECT_TRUE(x.memory.give_back());
  EXPECT_TRUE(x.memory.is_empty());
  EXPECT_FALSE(x.memory.give_back());
}

TEST(own_memory, keeps_its_segments_where_the_gpu_cannot_be_waited_for) {
  tested_memory x;
  void* const block = x.take(30 * mib);
  x.memory.free_block(block);
  for (const int failing : {1, 3}) {  // the first wait, then the second one
    x.streams.failing_synchronization = failing;
    EXPECT_FALSE(x.memory.give_back());
    EXPECT_TRUE(x.books.went.empty());
    EXPECT_EQ(x.counted().split, 0U);
  }
  EXPECT_EQ(x.take(30 * mib), block);
}

TEST(own_memory, a_refusal_leaves_no_reservation) {
  tested_memory x;
  x.books.limit = 20 * mib;
  refusal why;
  EXPECT_EQ(x.memory.allocate_block({30 * mib, x.own.handle}, why), nullptr);
  EXPECT_FALSE(why.allocator_refused);
  x.books.refuses = true;
  EXPECT_EQ(x.memory.allocate_block({mib, x.own.handle}, why), nullptr);
  EXPECT_TRUE(why.allocator_refused);
  EXPECT_EQ(x.books.reserved, 0U);
  EXPECT_THROW(x.memory.allocate_block({512, x.own.handle, 512}, why), std::invalid_argument);
}

TEST(own_memory, finds_the_segment_of_any_address_in_it) {
  tested_memory x;
  char* const block = static_cast<char*>(x.take(512));
  EXPECT_EQ(x.memory.segment_around(block + 700).begin, block);
  EXPECT_EQ(x.memory.segment_around(block).bytes, 2 * mib);
  EXPECT_THROW(static_cast<void>(x.memory.segment_around(block - 1)), std::invalid_argument);
  EXPECT_THROW(static_cast<void>(x.memory.segment_around(block + 2 * mib)), std::invalid_argument);
}

memory_totals walked(const own_memory& memory) {
  memory_map map;
  memory.describe(map, pool);
  memory_totals totals;
  each_piece(map, [&](const segment_piece& piece) {
    ++totals.pieces;
    for (const block_view* b = piece.begin; b != piece.end; ++b) {
      const bool live = b->is == block_view::state::live;
      totals.add_pool(pool, b->bytes, live ? b->bytes : 0);
      if (b->is == block_view::state::fenced) {
        ++totals.fenced;
        totals.fenced_bytes += b->bytes;
      } else if (!live && piece.end - piece.begin > 1) {
        ++totals.split;
        totals.split_bytes += b->bytes;
      }
    }
  });
  return totals;
}

TEST(own_memory, is_counted_as_a_walk_counts) {
  for (unsigned seed = 1; seed <= 10; ++seed) {
    tested_memory x;
    std::mt19937 random{seed};
    std::vector<void*> live;
    for (int k = 0; k < 1500; ++k) {
      const unsigned action = random() % 16;
      if (action < 8 || live.empty()) {
        live.push_back(x.take(1 + random() % (action == 0 ? 30 * mib : 64 * kib)));
      } else if (action < 14) {
        std::swap(live[random() % live.size()], live.back());
        x.free_used_by(live.back(), action < 11 ? std::vector{x.other} : std::vector<device_stream>{});
        live.pop_back();
      } else if (action == 14) {
        x.streams.done = random() % 2 == 0 ? std::set{x.other} : std::set<device_stream>{};
      } else {
        static_cast<void>(x.memory.give_back());
      }
      const memory_totals counted = x.counted(), seen = walked(x.memory);
      ASSERT_EQ((std::vector{counted.pieces, counted.fenced, counted.fenced_bytes, counted.split, counted.split_bytes,
                             counted.pool_bytes, counted.pool_live_bytes}),
                (std::vector{seen.pieces, seen.fenced, seen.fenced_bytes, seen.split, seen.split_bytes, seen.pool_bytes,
                             seen.pool_live_bytes}))
          << "seed " << seed << ", step " << k;
    }
  }
}

}  // namespace
}  // namespace gpumem::torch_tests
