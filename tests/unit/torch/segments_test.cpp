// The table of gpumem's segments with the request behind each, and the pieces of a memory map.
#include "segments.hpp"

#include <gtest/gtest.h>

#include <stdexcept>
#include <vector>

#include "bits.hpp"
#include "pieces.hpp"

namespace gpumem::torch_tests {
namespace {

constexpr pool_id pool{1, 0};
using state = block_view::state;

TEST(torch_segments, a_removed_range_is_cut_out_and_the_rest_keeps_its_request) {
  segment_table table;
  const auto stream = reinterpret_cast<cudaStream_t>(std::uintptr_t{10});
  {
    const segment_cause cause{pool, stream, nullptr};
    table.add(1000, 1000, segment_cause::current());
  }
  table.add(2000, 500, segment_cause::current());
  const auto removed = table.remove(1200, 900);
  ASSERT_EQ(removed.size(), 2U);
  EXPECT_EQ(removed[0].first, 1200U);
  EXPECT_EQ(removed[0].second.end, 2000U);
  EXPECT_EQ(removed[0].second.stream, stream);
  EXPECT_EQ(removed[1].first, 2000U);
  EXPECT_EQ(removed[1].second.pool, no_pool);
  const segment_table::map left = table.entries();
  ASSERT_EQ(left.size(), 2U);
  EXPECT_EQ(segment_table::around(left, 1199)->pool, pool);
  EXPECT_EQ(segment_table::around(left, 1200), nullptr);
  EXPECT_EQ(segment_table::around(left, 2499)->number, 2U);
  EXPECT_EQ(segment_table::around(left, 2500), nullptr);
}

TEST(torch_segments, a_cause_hides_the_outer_one_and_keeps_the_first_exception) {
  EXPECT_EQ(segment_cause::current(), nullptr);
  segment_cause outer{pool, nullptr, nullptr};
  {
    segment_cause inner{no_pool, nullptr, nullptr};
    EXPECT_EQ(segment_cause::current(), &inner);
    inner.fail(std::make_exception_ptr(std::runtime_error{"first"}));
    inner.fail(std::make_exception_ptr(std::logic_error{"second"}));
    EXPECT_THROW(inner.rethrow(), std::runtime_error);
    EXPECT_NO_THROW(inner.rethrow());
  }
  EXPECT_EQ(segment_cause::current(), &outer);
}

segment_view segment_of(address begin, bool paged, std::vector<block_view> blocks) {
  segment_view made{.begin = begin, .bytes = 0, .paged = paged, .blocks = {}};
  for (block_view& each : blocks) {
    each.begin = begin + made.bytes;
    made.bytes += each.bytes;
  }
  made.blocks = std::move(blocks);
  return made;
}

TEST(torch_segments, a_piece_ends_where_the_region_does_and_where_no_memory_is) {
  memory_map map;
  map.pool_of_region[7] = pool;
  map.shared.push_back(segment_of(mib, true,
                                  {{.bytes = 512, .is = state::unbacked},
                                   {.bytes = 512, .is = state::live},
                                   {.bytes = 1024, .is = state::idle},
                                   {.bytes = 512, .region = 7, .is = state::live},
                                   {.bytes = 512, .region = 8, .is = state::cached},
                                   {.bytes = 512, .is = state::unbacked}}));
  map.own.push_back(
      {.view = segment_of(8 * mib, false, {{.bytes = 512, .is = state::live}}), .pool = {2, 0}, .number = 3});
  std::vector<std::pair<std::ptrdiff_t, pool_id>> pieces;
  each_piece(map, [&](const segment_piece& piece) { pieces.emplace_back(piece.end - piece.begin, piece.pool); });
  EXPECT_EQ(pieces,
            (std::vector<std::pair<std::ptrdiff_t, pool_id>>{{2, no_pool}, {1, pool}, {1, no_pool}, {1, {2, 0}}}));
}

TEST(torch_segments, an_ended_pool_is_worth_its_idle_segments_unless_a_larger_one_would_go) {
  memory_map map;
  map.pool_of_region[7] = pool;
  map.shared.push_back(segment_of(mib, false, {{.bytes = 2 * mib, .region = 7, .is = state::cached}}));
  EXPECT_EQ(bytes_to_trim(map, pool), 2 * mib);
  map.shared.push_back(segment_of(
      8 * mib, false, {{.bytes = mib, .region = 7, .is = state::cached}, {.bytes = mib, .is = state::live}}));
  EXPECT_EQ(bytes_to_trim(map, pool), 2 * mib) << "another block holds the second";
  map.shared.push_back(segment_of(16 * mib, false, {{.bytes = 4 * mib, .is = state::idle}}));
  EXPECT_EQ(bytes_to_trim(map, pool), 0U);
}

}  // namespace
}  // namespace gpumem::torch_tests
