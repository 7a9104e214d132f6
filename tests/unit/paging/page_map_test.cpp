#include "page_map.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "bits.hpp"
#include "heap.hpp"

namespace gpumem {
namespace {

constexpr std::uint64_t page = 2 * mib;
constexpr address base = 64 * gib;

mapped_run run(std::uint64_t at_page, std::uint64_t pages) { return {base + at_page * page, pages * page, {}}; }

std::vector<std::uint64_t> pages_of(const page_map& m) {
  std::vector<std::uint64_t> out;
  for (const auto& [begin, run] : m.runs()) out.push_back((begin - base) / page);
  return out;
}

TEST(page_map, finds_any_byte_of_a_run) {
  page_map m;
  for (const mapped_run& r : {run(0, 2), run(2, 1), run(5, 3)}) m.insert(r);
  EXPECT_TRUE(m.touches(base + page, 1));
  EXPECT_FALSE(m.touches(base + 3 * page, 2 * page));
  EXPECT_TRUE(m.touches(base + 3 * page, 2 * page + 1));
  EXPECT_FALSE(m.touches(base - page, page));
}

TEST(page_map, what_goes_is_not_there_any_more) {
  page_map m;
  for (const mapped_run& r : {run(0, 2), run(2, 1), run(5, 3)}) m.insert(r);
  m.erase(base + page, 6 * page);
  EXPECT_THAT(pages_of(m), testing::ElementsAre(0, 5)) << "one begins before, one ends behind";
  m.erase(base + 2 * page, 6 * page);
  EXPECT_THAT(pages_of(m), testing::ElementsAre(0));
  EXPECT_FALSE(m.touches(base + 2 * page, 6 * page));
  EXPECT_GT(m.metadata_bytes(), 0U);
}

TEST(page_map, room_is_used_and_what_is_left_of_it_goes) {
  page_map m;
  m.make_room(2);
  m.insert(run(0, 1));
  m.insert(run(1, 1));
  m.insert(run(2, 1));
  EXPECT_EQ(m.runs().size(), 3U);
  m.make_room(3);
  m.make_room(1);
  m.insert(run(7, 1));
  EXPECT_THAT(pages_of(m), testing::ElementsAre(0, 1, 2, 7));
}

TEST(page_map, stretches_are_runs_side_by_side_behind_one_free_block) {
  heap h{1};
  const owner_id stream = h.add_owner();
  h.make_room_for_segment();
  h.make_room_for_blocks(8);
  static_cast<void>(h.add_segment(base, 8 * page, 0));
  page_map m;
  for (const mapped_run& r : {run(0, 2), run(2, 2), run(4, 3), run(7, 1)}) m.insert(r);
  const auto stretches = [&](owner_id owner, address skipped = 0) {
    std::vector<std::pair<std::uint64_t, std::uint64_t>> out;
    for (const free_stretch& s : m.stretches(h, owner, [&](const mapped_run& r) { return r.begin == skipped; }))
      out.emplace_back((s.begin - base) / page, s.bytes / page);
    return out;
  };
  EXPECT_THAT(stretches(idle_owner), testing::ElementsAre(testing::Pair(0, 8)));
  EXPECT_THAT(stretches(idle_owner, base + 2 * page), testing::ElementsAre(testing::Pair(0, 2), testing::Pair(4, 4)))
      << "a run that is skipped parts what lies beside it";
  EXPECT_TRUE(stretches(stream).empty());
  const block_index whole = h.free_blocks().oldest(idle_owner);
  const block_index live = h.carve_at(whole, base + 5 * page, 512, stream);
  ASSERT_NE(live, no_block);
  EXPECT_THAT(stretches(idle_owner), testing::ElementsAre(testing::Pair(0, 4), testing::Pair(7, 1)))
      << "a run that a live block touches is not idle";
  h.release(live, stream, 1, true);
  EXPECT_THAT(stretches(stream), testing::ElementsAre(testing::Pair(0, 8)));
  EXPECT_TRUE(stretches(idle_owner).empty());
}

}  // namespace
}  // namespace gpumem
