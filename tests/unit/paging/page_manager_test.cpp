// Plans and records of a paged segment over a heap and a simulated device, without streams and without a lock.
#include "page_manager.hpp"

#include <gtest/gtest.h>

#include "bits.hpp"
#include "gpumem/sim_device.hpp"
#include "log.hpp"

namespace gpumem {
namespace {

constexpr std::uint64_t page = 2 * mib;
using verdict = page_manager::verdict;

/// A range of 16 pages without memory.
struct one_range {
  sim_device device;
  heap blocks{1};
  page_manager tested{blocks, device, "0"};
  address base = *device.reserve(16 * page);
  owner_id owner = blocks.add_owner();
  one_range() { blocks.add_segment(base, 16 * page, 0, false); }
  ~one_range() {
    EXPECT_TRUE(blocks.validate().ok()) << blocks.validate().message();
    EXPECT_TRUE(tested.check().ok()) << tested.check().message();
    EXPECT_EQ(device.used_bytes(), blocks.totals().segment_bytes + tested.in_transit_bytes());
  }
  one_range(const one_range&) = delete;
  one_range& operator=(const one_range&) = delete;

  [[nodiscard]] static page_manager::paging_limits means(std::uint64_t make, std::uint64_t run = page) {
    return {.policy = {.make_bytes = make, .run_bytes = run}, .room_bytes = UINT64_MAX, .poll = false};
  }
  [[nodiscard]] page_place place(std::uint64_t bytes) const {
    return *cheapest_place(blocks, 0, owner, bytes, 512, page);
  }
  /// As an arena does it, with the calls made at once.
  block_index take(std::uint64_t bytes, const page_manager::paging_limits& may, status* why = nullptr) {
    const page_place at = place(bytes);
    remap_batch step;
    if (tested.plan(at, bytes, may, &step) != verdict::ready) return no_block;
    tested.begin(step);
    const status done = execute(device, step);
    last = tested.finish(step);
    if (why != nullptr) *why = done;
    if (!done) return no_block;
    const block_index i = tested.carve(at, bytes, owner, step.pieces.front().begin);
    blocks.at(i).owner = owner;
    return i;
  }
  void give(block_index i) { blocks.release(i, idle_owner, 0, true); }
  page_manager::finished last;
};

TEST(paged_backing, makes_what_is_missing_and_what_the_policy_wants_ahead) {
  one_range x;
  const block_index i = x.take(page + 512, x.means(4 * page, 2 * page));
  ASSERT_NE(i, no_block);
  EXPECT_EQ(x.last.new_bytes, 4 * page) << "two were missing";
  EXPECT_EQ(x.last.mapped_pages, 4U);
  EXPECT_EQ(x.tested.map().runs().size(), 3U) << "no run is longer than two";
  x.give(i);
}

// Else a small block behind a large one would keep all of the large one's pages from moving once it is free.
TEST(paged_backing, makes_the_page_in_which_a_request_ends_apart) {
  const auto runs_of = [](std::uint64_t request, std::uint64_t make, bool moves = true, bool end_apart = true) {
    one_range x;
    page_manager::paging_limits may = x.means(make, 8 * page);
    may.policy.moves = moves;
    may.policy.end_apart = end_apart;
    const block_index i = x.take(request, may);
    EXPECT_NE(i, no_block);
    std::vector<std::uint64_t> pages;
    for (const auto& [begin, made] : x.tested.map().runs()) pages.push_back(made.bytes / page);
    x.give(i);
    return pages;
  };
  using pages = std::vector<std::uint64_t>;
  EXPECT_EQ(runs_of(3 * page + 512, 4 * page), (pages{3, 1}));
  EXPECT_EQ(runs_of(3 * page + 512, 2 * page), (pages{4})) << "more than the policy wants";
  EXPECT_EQ(runs_of(3 * page + 512, 6 * page), (pages{3, 3})) << "with the pages made ahead";
  EXPECT_EQ(runs_of(3 * page, 5 * page), (pages{3, 2})) << "it ends with its page";
  EXPECT_EQ(runs_of(512, 4 * page), (pages{4})) << "it has no other page";
  EXPECT_EQ(runs_of(3 * page + 512, 6 * page, true, false), (pages{4, 2})) << "the policy wants it with the others";
  EXPECT_EQ(runs_of(512, 4 * page, true, false), (pages{4}));
  EXPECT_EQ(runs_of(3 * page + 512, 6 * page, false), (pages{4, 2})) << "no page moves";
  EXPECT_EQ(runs_of(512, 4 * page, false), (pages{1, 3})) << "pages that never move go back apart";
}

TEST(paged_backing, frees_a_large_request_for_a_move_though_a_small_one_lies_behind_it) {
  one_range x;
  const block_index large = x.take(3 * page + 512, x.means(4 * page, 8 * page));
  const block_index small = x.blocks.carve(x.blocks.at(large).next, 512, 512);
  x.give(large);
  const block_index i = x.take(4 * page, x.means(page, 8 * page));
  ASSERT_NE(i, no_block);
  EXPECT_EQ(x.last.remapped_pages, 3U);
  x.give(i);
  x.give(small);
}

TEST(paged_backing, makes_runs_of_equal_length) {
  one_range x;
  const block_index i = x.take(10 * page, x.means(10 * page, 4 * page));
  ASSERT_NE(i, no_block);
  std::vector<std::uint64_t> pages;
  for (const auto& [begin, run] : x.tested.map().runs()) pages.push_back(run.bytes / page);
  EXPECT_EQ(pages, (std::vector<std::uint64_t>{4, 3, 3})) << "not 4, 4 and 2";
  x.give(i);
}

TEST(paged_backing, moves_idle_runs_the_shortest_stretch_first) {
  one_range x;
  std::vector<block_index> all;
  for (int k = 0; k < 8; ++k) all.push_back(x.take(page, x.means(page)));
  for (const std::size_t k : {1U, 3U, 4U}) x.give(all[k]);
  const address alone = x.base + page;
  const block_index i = x.take(2 * page + 512, x.means(0));
  ASSERT_NE(i, no_block);
  EXPECT_EQ(x.last.remapped_pages, 3U);
  EXPECT_EQ(x.last.new_bytes, 0U);
  EXPECT_FALSE(x.tested.map().touches(alone, page));
  EXPECT_EQ(x.device.used_bytes(), 8 * page);
}

TEST(paged_backing, says_what_has_to_come_before_more_is_made_than_wanted) {
  one_range x;
  remap_batch step;
  page_manager::paging_limits may = x.means(0);
  may.policy.over_bytes = 0;
  may.poll = true;
  EXPECT_EQ(x.tested.plan(x.place(2 * page), 2 * page, may, &step), verdict::poll_first);
  may.poll = false;
  EXPECT_EQ(x.tested.plan(x.place(2 * page), 2 * page, may, &step), verdict::give_back_first);
  EXPECT_EQ(step.new_bytes, 2 * page);
  may.give_back = false;
  may.room_bytes = page;
  EXPECT_EQ(x.tested.plan(x.place(2 * page), 2 * page, may, &step), verdict::impossible);
  may.room_bytes = 2 * page;
  step = {};
  EXPECT_EQ(x.tested.plan(x.place(2 * page), 2 * page, may, &step), verdict::ready);
}

TEST(paged_backing, unmaps_nothing_while_that_is_not_allowed) {
  one_range x;
  const block_index low = x.take(page, x.means(page));
  x.take(page, x.means(page));
  x.give(low);
  page_manager::paging_limits may = x.means(0);
  may.unmap = false;
  EXPECT_NE(x.take(2 * page, may), no_block);
  EXPECT_EQ(x.last.remapped_pages, 0U);
  EXPECT_EQ(x.last.new_bytes, 2 * page);
}

TEST(paged_backing, accounts_for_every_byte_whatever_call_fails) {
  for (const device_call call : {device_call::create, device_call::map, device_call::set_access, device_call::unmap}) {
    for (const std::uint64_t nth : {1U, 2U}) {
      one_range x;
      std::vector<block_index> all;
      for (int k = 0; k < 6; ++k) all.push_back(x.take(page, x.means(page)));
      x.give(all[0]);
      x.give(all[2]);
      x.device.fail_nth(call, nth, errc::device_error);
      status why;
      const block_index i = x.take(5 * page, x.means(3 * page), &why);
      EXPECT_EQ(i == no_block, !why.ok()) << to_string(call) << nth;
    }
  }
}

TEST(paged_backing, a_place_that_was_taken_meanwhile_is_no_ones) {
  one_range x;
  const block_index i = x.take(2 * page, x.means(2 * page));
  EXPECT_EQ(x.tested.carve({.begin = x.base}, 2 * page, x.owner, x.base), no_block) << "in use";
  x.give(i);
  const block_index top = x.blocks.carve_at(x.blocks.containing(x.base), x.base + page, page, x.owner);
  EXPECT_EQ(x.tested.carve({.begin = x.base}, 2 * page, x.owner, x.base), no_block) << "in part";
  const block_index low = x.blocks.carve_at(x.blocks.containing(x.base), x.base, 512, x.owner);
  EXPECT_EQ(x.tested.carve({.begin = x.base}, page, x.owner, x.base + 512), no_block) << "below what is new";
  x.give(top);
  x.give(low);
  EXPECT_EQ(x.tested.carve({.begin = x.base}, 2 * page, x.owner, x.base + page), x.blocks.containing(x.base));
}

TEST(paged_backing, gives_back_from_the_upper_end_of_the_longest_stretch_and_keeps_what_it_is_told) {
  one_range x;
  const block_index whole = x.take(8 * page, x.means(8 * page));
  const block_index wall = x.take(page, x.means(page));
  x.give(whole);
  std::vector<mapped_run> going = x.tested.take_longest_idle(2 * page, {x.base + 6 * page, x.base + 7 * page});
  ASSERT_EQ(going.size(), 2U);
  EXPECT_EQ(going.front().begin, x.base + 4 * page);
  EXPECT_EQ(x.tested.in_transit_bytes(), 2 * page);
  const std::uint64_t used = x.device.used_bytes();
  x.device.fail_nth(device_call::unmap, 1);
  const returned_runs kept = return_runs(x.device, going);
  EXPECT_FALSE(kept.unmapped);
  x.tested.finish(going, kept);
  EXPECT_EQ(x.tested.in_transit_bytes(), 0U) << "what the driver did not unmap is idle again";
  EXPECT_TRUE(x.tested.check().ok());
  going = x.tested.take_longest_idle(2 * page, {x.base + 6 * page, x.base + 7 * page});
  ASSERT_EQ(going.size(), 2U);
  EXPECT_EQ(going.front().begin, x.base + 4 * page);
  x.tested.finish(going, return_runs(x.device, going));
  EXPECT_EQ(x.tested.in_transit_bytes(), 0U);
  EXPECT_EQ(x.device.used_bytes(), used - 2 * page);
  EXPECT_TRUE(x.tested.take_longest_idle(page, {x.base, x.base + 16 * page}).empty());
  x.give(wall);
}

TEST(paged_backing, returns_everything_at_the_end_and_says_what_stays) {
  std::vector<std::string> lines;
  const log_sink before = set_log_sink([&lines](std::string_view line) { lines.emplace_back(line); });
  const auto left_after = [](auto fault) {
    sim_device device;
    heap blocks{1};
    page_manager tested{blocks, device, "7"};
    tested.return_everything();  // nothing
    const address base = *device.reserve(8 * page);
    blocks.add_segment(base, 8 * page, 0, false);
    for (const address at : {base, base + page, base + 4 * page}) {
      remap_batch step;
      step.pieces.push_back({at, page});
      step.runs.push_back({.source = {.begin = 0, .bytes = page, .pages = {}}, .target = at});
      tested.begin(step);
      EXPECT_TRUE(execute(device, step).ok());
      EXPECT_EQ(tested.finish(step).new_bytes, page);
    }
    fault(device);
    tested.return_everything();
    return device.used_bytes();
  };
  EXPECT_EQ(left_after([](sim_device&) {}), 0U);
  EXPECT_TRUE(lines.empty());
  EXPECT_EQ(left_after([](sim_device& d) { d.fail_nth(device_call::unmap, 1, errc::device_error); }), 2 * page);
  EXPECT_EQ(left_after([](sim_device& d) { d.fail_nth(device_call::synchronize, 1, errc::device_error); }), 3 * page);
  set_log_sink(before);
  ASSERT_EQ(lines.size(), 2U);
  EXPECT_NE(lines[0].find("pool 7: pages stay with the driver"), std::string::npos) << lines[0];
  EXPECT_NE(lines[1].find("pool 7: its pages stay with the driver"), std::string::npos) << lines[1];
}

}  // namespace
}  // namespace gpumem
