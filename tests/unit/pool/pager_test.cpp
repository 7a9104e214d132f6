// How a pool moves pages: with a policy that limits new pages, with small address ranges, and with faults.
#include <gtest/gtest.h>

#include <thread>

#include "bits.hpp"
#include "cacheless_pool.hpp"
#include "gpumem/sim_device.hpp"
#include "known_segments.hpp"

namespace gpumem {
namespace {

constexpr std::uint64_t page = 2 * mib;

/// Makes new pages until the pool holds `most`; a range of addresses is `range` long.
struct page_by_page final : policy {
  std::uint64_t most;
  std::uint64_t range;
  std::uint64_t run;
  std::uint64_t over;
  bool moves = true;
  std::uint64_t least_range = 0;
  std::vector<pool_view>* seen = nullptr;  ///< receives what `page_in` is told
  page_by_page(std::uint64_t most_bytes, std::uint64_t range_bytes, std::uint64_t run_bytes, std::uint64_t over_bytes)
      : most{most_bytes}, range{range_bytes}, run{run_bytes}, over{over_bytes} {}
  [[nodiscard]] page_rules pages(const pool_view&) const override {
    return {.range_bytes = range, .least_range_bytes = least_range};
  }
  [[nodiscard]] page_request page_in(const pool_view& view, std::uint64_t, std::uint64_t missing) const override {
    if (seen != nullptr) seen->push_back(view);
    return {.make_bytes = std::min(missing, most > view.reserved_bytes ? most - view.reserved_bytes : 0),
            .run_bytes = run,
            .over_bytes = over,
            .moves = moves};
  }
  segment_request grow(const pool_view&, std::uint64_t need) override { return {.bytes = need, .least_bytes = need}; }
};

struct paged_pool {
  sim_device device;
  cacheless_pool tested;
  std::shared_ptr<known_segments> observer = std::make_shared<known_segments>();
  explicit paged_pool(std::uint64_t most = 16 * page, std::uint64_t range = 1 * gib, std::uint64_t run = page,
                      std::uint64_t limit = 4 * gib, std::uint64_t over = UINT64_MAX)
      : tested{device, config(limit), std::make_unique<page_by_page>(most, range, run, over)} {
    (*tested).observe_segments(observer);
  }
  ~paged_pool() {
    observer->expect_all((*tested).segments(), device.live_mappings() * page - tested.stats().reserved_bytes);
    EXPECT_TRUE(tested.check().ok()) << tested.check().message();
    EXPECT_EQ(device.hazard_count(), 0U);
    EXPECT_EQ(device.used_bytes(), tested.stats().reserved_bytes);
  }
  paged_pool(const paged_pool&) = delete;
  paged_pool& operator=(const paged_pool&) = delete;

  static pool_config config(std::uint64_t limit) {
    pool_config p;
    p.reuse = stream_reuse::device;
    p.name = "0";
    p.limit_bytes = limit;
    p.total_bytes = 80 * gib;
    return p;
  }
  address take(std::uint64_t bytes, stream_ref s = {}) {
    request r;
    r.bytes = bytes;
    r.stream = s;
    address at = 0;
    if (!tested.allocate(r, round_up(bytes, 512), &at, nullptr)) return 0;
    device.handed_out(at, bytes, s);
    device.enqueue_use(s, 1'000'000, at, bytes);
    return at;
  }
  void give(address at) {
    device.given_back(at);
    EXPECT_TRUE(tested.release_block(at, {}).ok());
  }
  [[nodiscard]] std::uint64_t calls(device_call kind) const { return device.calls()[static_cast<std::size_t>(kind)]; }
};

TEST(paging, a_page_that_is_idle_somewhere_serves_elsewhere) {
  paged_pool p;
  std::vector<address> blocks;
  for (int k = 0; k < 16; ++k) blocks.push_back(p.take(page));
  EXPECT_EQ(p.tested.stats().mapped_pages, 16U);
  for (std::size_t k = 0; k < 16; k += 2) p.give(blocks[k]);  // every other page: nowhere two in a row
  p.device.advance_by(20'000'000);                            // their work is done
  EXPECT_NE(p.take(8 * page), 0U);
  const statistics s = p.tested.stats();
  EXPECT_EQ(s.host_waits, 0U);
  EXPECT_EQ(s.reserved_bytes, 16 * page);
  EXPECT_EQ(s.mapped_pages, 16U);
  EXPECT_LE(s.remapped_pages, 8U);
  EXPECT_GE(s.remapped_pages, 7U) << "one may serve where it is";
  EXPECT_EQ(p.device.remapped_pages(), s.remapped_pages);
  EXPECT_EQ(p.device.mapped_pages(), s.mapped_pages);
}

TEST(paging, observers_are_told_before_pages_go_and_after_they_arrived) {
  paged_pool p;
  std::vector<std::uint64_t> mappings;  // behind the pool's addresses, at each event
  p.observer->at_event = [&](const known_segments::event&) {
    mappings.push_back(p.device.live_mappings());
    EXPECT_NE(p.tested.stats().limit_bytes, 0U) << "asked without a deadlock";
  };
  const address a = p.take(2 * page);
  const address wall = p.take(14 * page);
  p.give(a);
  p.device.advance_by(20'000'000);
  mappings.clear();
  EXPECT_NE(p.take(2 * page + 512), 0U) << "two pages move, and one is new";
  EXPECT_EQ(mappings, (std::vector<std::uint64_t>{16, 17}));
  p.give(wall);
  p.device.advance_by(20'000'000);
  mappings.clear();
  EXPECT_EQ(p.tested.trim(UINT64_MAX).returned_bytes, 14 * page);
  EXPECT_EQ(mappings, std::vector<std::uint64_t>{17});
  EXPECT_TRUE(p.observer->events().back().extent.paged);
}

TEST(paging, pages_that_the_driver_does_not_unmap_are_added_again) {
  paged_pool p;
  p.give(p.take(4 * page));
  p.device.advance_by(20'000'000);
  p.device.fail_nth(device_call::unmap, 1);
  EXPECT_EQ(p.tested.trim(UINT64_MAX).returned_bytes, 0U);
  const std::vector<known_segments::event> events = p.observer->events();
  ASSERT_EQ(events.size(), 3U);
  EXPECT_FALSE(events[1].added);
  EXPECT_TRUE(events[2].added);
  EXPECT_EQ(events[1].extent.begin, events[2].extent.begin);
}

TEST(paging, pages_move_only_in_the_order_of_the_work_on_them) {
  paged_pool p{4 * page};
  const address first = p.take(2 * page);
  const address second = p.take(2 * page);
  p.give(first);
  EXPECT_NE(p.take(2 * page), 0U) << "the same hole again needs no wait";
  EXPECT_EQ(p.tested.stats().host_waits, 0U);
  p.give(second);
  p.take(page);
  EXPECT_NE(p.take(page + 512), 0U);
  EXPECT_EQ(p.device.hazard_count(), 0U) << "the referee knows what is in flight";
}

// As on a card, where an event on an idle stream is done a microsecond after its record. The simulated device takes 1
// us for a record and 0.5 us for a query.
TEST(paging, pages_move_if_the_work_on_them_ends_within_a_few_queries) {
  paged_pool x{4 * page};
  const address lower = x.take(2 * page);
  const address upper = x.take(2 * page);
  x.device.advance_by(10'000'000);
  x.device.enqueue_use({}, 6'000, lower, 2 * page);
  x.give(lower);
  ASSERT_NE(x.take(4 * page), 0U);
  EXPECT_EQ((*x.tested).stats().remapped_pages, 2U);
  x.give(upper);
}

TEST(paging, one_set_access_opens_a_run_of_pages) {
  paged_pool p{64 * page, 1 * gib, 64 * page};
  EXPECT_NE(p.take(40 * page), 0U);
  EXPECT_EQ(p.calls(device_call::set_access), 1U);
  EXPECT_EQ(p.calls(device_call::create), 1U);
  EXPECT_EQ(p.tested.stats().mapped_pages, 40U);
}

TEST(paging, the_limit_holds_and_idle_pages_reach_what_it_leaves) {
  paged_pool p{UINT64_MAX, 1 * gib, page, 8 * page};
  std::vector<address> blocks;
  for (int k = 0; k < 8; ++k) blocks.push_back(p.take(page));
  EXPECT_EQ(p.take(page), 0U);
  for (std::size_t k = 1; k < 8; k += 2) p.give(blocks[k]);
  EXPECT_NE(p.take(4 * page), 0U);
  EXPECT_EQ(p.tested.stats().reserved_bytes, 8 * page);
  EXPECT_EQ(p.device.peak_used_bytes(), 8 * page);
}

TEST(paging, runs_that_are_too_long_to_move_go_back_and_make_room) {
  paged_pool p{UINT64_MAX, 1 * gib, 4 * page, 8 * page};
  const address a = p.take(4 * page);
  const address b = p.take(4 * page);
  p.give(a);
  p.take(page);  // in the first run, which cannot move any more
  p.give(b);
  EXPECT_NE(p.take(3 * page), 0U);
  EXPECT_EQ(p.tested.stats().reserved_bytes, 8 * page);
}

// Three runs of four pages, the middle one in use. A request of five pages lacks one, and no run is that short.
TEST(paging, runs_that_are_too_long_to_move_go_back_before_too_much_is_made) {
  const auto reserved_after = [](std::uint64_t over) {
    paged_pool p{12 * page, 1 * gib, 4 * page, 4 * gib, over};
    const address low = p.take(4 * page);
    const address middle = p.take(4 * page);
    const address high = p.take(4 * page);
    p.give(low);
    p.give(high);
    p.device.advance_by(20'000'000);
    EXPECT_NE(p.take(5 * page), 0U);
    EXPECT_TRUE(p.tested.is_live(middle));
    const statistics s = p.tested.stats();
    EXPECT_EQ(s.remapped_pages, 0U);
    EXPECT_EQ(s.mapped_pages, 13U);
    EXPECT_EQ(s.returned_pages * page + s.reserved_bytes, 13 * page);
    EXPECT_EQ(s.peak_reserved_bytes, s.returned_pages != 0 ? 12 * page : 13 * page);
    return s.reserved_bytes;
  };
  EXPECT_EQ(reserved_after(page), 13 * page) << "so much over is allowed";
  EXPECT_EQ(reserved_after(page - 512), 9 * page);
}

/// Sixteen pages, of which every other one is free while work on it is pending.
struct half_pending : paged_pool {
  std::vector<address> blocks;
  half_pending() {
    for (int k = 0; k < 16; ++k) blocks.push_back(take(page));
    for (std::size_t k = 0; k < 16; k += 2) give(blocks[k]);
  }
};

TEST(paging, memory_behind_work_that_is_under_way_is_not_waited_for_while_new_pages_may_be_made) {
  half_pending p;
  const stream_ref other = p.device.create_stream();
  const std::uint64_t begin_ns = p.device.now_ns();
  EXPECT_NE(p.take(8 * page, other), 0U);
  EXPECT_LT(p.device.now_ns() - begin_ns, 1'000'000U) << "the work of one block takes as long";
  EXPECT_EQ(p.tested.stats().host_waits, 0U);
  EXPECT_EQ(p.tested.stats().remapped_pages, 0U) << "another stream's work protects nothing of this one";
  EXPECT_GT(p.tested.stats().reserved_bytes, 16 * page);
}

TEST(paging, pages_move_within_their_stream_while_work_on_them_is_pending) {
  half_pending p;
  const address at = p.take(8 * page);
  ASSERT_NE(at, 0U);
  const statistics s = p.tested.stats();
  EXPECT_EQ(s.reserved_bytes, 16 * page);
  EXPECT_EQ(s.host_waits, 0U);
  EXPECT_GE(s.remapped_pages, 7U) << "one may serve where it is";
  EXPECT_EQ(p.calls(device_call::unmap), 0U) << "the work may still use the old addresses";
  EXPECT_EQ(p.device.live_mappings(), 16U + s.remapped_pages);
  const stream_ref other = p.device.create_stream();
  p.give(at);
  EXPECT_NE(p.take(8 * page, other), 0U);
  EXPECT_EQ(p.tested.stats().device_waits, s.device_waits + 1) << "another stream waits for the work, as for any block";
}

TEST(paging, addresses_that_pages_left_are_unmapped_once_the_work_there_is_done) {
  half_pending p;
  const address at = p.take(8 * page);
  p.device.advance_by(100'000'000);
  EXPECT_NE(p.take(2 * page), 0U);
  EXPECT_GE(p.calls(device_call::unmap), 1U);
  EXPECT_EQ(p.device.live_mappings(), 18U);
  p.give(at);
}

TEST(paging, trim_returns_pages_that_moved_while_work_was_pending_once_it_is_done) {
  half_pending p;
  const address at = p.take(8 * page);
  p.give(at);
  p.device.advance_by(100'000'000);
  EXPECT_EQ(p.tested.trim(UINT64_MAX).returned_bytes, 8 * page);
  EXPECT_EQ(p.device.used_bytes(), 8 * page) << "no second mapping keeps them";
  EXPECT_EQ(p.device.live_mappings(), 8U);
}

TEST(paging, a_stream_that_ends_leaves_no_address_mapped_twice) {
  paged_pool p{4 * page};
  const stream_ref s = p.device.create_stream();
  const address lower = p.take(2 * page, s);
  const address upper = p.take(2 * page, s);
  p.give(lower);
  const address at = p.take(3 * page, s);
  EXPECT_EQ(p.tested.stats().remapped_pages, 2U);
  for (const address each : {at, upper}) p.give(each);
  ASSERT_TRUE((*p.tested).streams().stream_release(*p.tested.key_of(s)).ok());
  ASSERT_TRUE(p.device.destroy_stream(s).ok());
  p.device.advance_by(100'000'000);
  EXPECT_EQ(p.tested.trim(UINT64_MAX).returned_bytes, 5 * page);
  EXPECT_EQ(p.device.live_mappings(), 0U);
  (*p.tested).streams().poll();
  EXPECT_EQ(p.tested.stats().streams, 0U) << "its slot is not kept";
}

TEST(paging, a_pool_that_ends_unmaps_the_addresses_that_pages_left) {
  sim_device device;
  {
    cacheless_pool tested{device, paged_pool::config(4 * gib),
                          std::make_unique<page_by_page>(4 * page, 1 * gib, page, UINT64_MAX)};
    const auto take = [&](std::uint64_t bytes) {
      request r;
      r.bytes = bytes;
      address at = 0;
      EXPECT_TRUE(tested.allocate(r, bytes, &at, nullptr).ok());
      device.enqueue_use({}, 1'000'000, at, bytes);
      return at;
    };
    const address lower = take(2 * page);
    take(2 * page);
    EXPECT_TRUE(tested.release_block(lower, {}).ok());
    take(3 * page);
    EXPECT_EQ(device.live_mappings(), 7U) << "two of the five pages are mapped twice";
  }
  EXPECT_EQ(device.live_mappings(), 0U);
  EXPECT_EQ(device.used_bytes(), 0U);
  EXPECT_EQ(device.hazard_count(), 0U);
}

TEST(paging, pending_pages_move_although_the_device_refuses_new_ones_first) {
  paged_pool p{UINT64_MAX, 1 * gib, 4 * page};
  std::vector<address> blocks;
  for (int k = 0; k < 8; ++k) blocks.push_back(p.take(page));
  for (std::size_t k = 0; k < 8; k += 2) p.give(blocks[k]);
  p.device.set_foreign_bytes(80 * gib - 9 * page);
  EXPECT_NE(p.take(5 * page), 0U) << "four pending pages and the one that is left";
  EXPECT_EQ(p.tested.stats().host_waits, 0U);
  EXPECT_GE(p.calls(device_call::create), 9U);
}

TEST(paging, observers_hear_of_old_addresses_when_the_work_there_is_done) {
  half_pending p;
  const std::size_t before = p.observer->events().size();
  const address at = p.take(8 * page);
  for (std::size_t k = before; k < p.observer->events().size(); ++k) EXPECT_TRUE(p.observer->events()[k].added);
  p.device.advance_by(100'000'000);
  EXPECT_NE(p.take(page), 0U);
  std::uint64_t removed_bytes = 0;
  for (const known_segments::event& each : p.observer->events()) removed_bytes += each.added ? 0 : each.extent.bytes;
  EXPECT_EQ(removed_bytes, p.tested.stats().remapped_pages * page);
  p.give(at);
}

// A created stream under `query`: the fence behind its frees must be recorded on the stream, not on the context.
TEST(paging, pending_pages_of_a_created_stream_move_behind_its_own_fence) {
  paged_pool p{8 * page};
  const stream_ref s = p.device.create_stream();
  std::vector<address> blocks;
  for (int k = 0; k < 8; ++k) blocks.push_back(p.take(page, s));
  for (std::size_t k = 0; k < 8; k += 2) p.give(blocks[k]);
  const address at = p.take(4 * page, s);
  ASSERT_NE(at, 0U);
  EXPECT_GE(p.tested.stats().remapped_pages, 3U);
  p.give(at);
  EXPECT_NE(p.take(2 * page, s), 0U);
  EXPECT_NE(p.take(3 * page, s), 0U);
  EXPECT_EQ(p.calls(device_call::record_context), 0U);
}

TEST(paging, nothing_moves_or_is_unmapped_once_a_capture_is_known) {
  half_pending p;
  const address at = p.take(8 * page);
  p.device.advance_by(100'000'000);
  const stream_ref s = p.device.create_stream();
  result<pool_capture> capture = (*p.tested).streams().capture_begin(s, *p.tested.key_of(s), capture_effect::announced);
  ASSERT_TRUE(capture.ok());
  EXPECT_NE(p.take(2 * page), 0U);
  EXPECT_EQ(p.calls(device_call::unmap), 0U);
  static_cast<void>(capture->end());
  EXPECT_NE(p.take(2 * page), 0U);
  EXPECT_NE(p.calls(device_call::unmap), 0U);
  p.give(at);
}

TEST(paging, addresses_that_cannot_be_unmapped_are_tried_again) {
  half_pending p;
  const address at = p.take(8 * page);
  p.device.advance_by(100'000'000);
  p.device.fail_nth(device_call::unmap, 1);
  for (int k = 0; k < 2; ++k) EXPECT_NE(p.take(page), 0U);
  EXPECT_EQ(p.device.live_mappings(), 18U);
  p.give(at);
}

TEST(paging, beyond_a_lowered_limit_idle_pages_still_move) {
  paged_pool p{UINT64_MAX};
  std::vector<address> blocks;
  for (int k = 0; k < 8; ++k) blocks.push_back(p.take(page));
  p.tested.cap().set_limit(3 * page);
  for (std::size_t k = 1; k < 8; k += 2) p.give(blocks[k]);
  EXPECT_NE(p.take(4 * page), 0U);
  EXPECT_EQ(p.tested.stats().reserved_bytes, 8 * page);
}

// As in growth within one region: idle memory goes back and is mapped again at the end of the mapped part, without a
// new address range.
TEST(paging, what_may_not_move_goes_back_to_make_room) {
  sim_device device;
  auto policy = std::make_unique<page_by_page>(UINT64_MAX, 1 * gib, page, UINT64_MAX);
  policy->moves = false;
  std::vector<pool_view> seen;
  policy->seen = &seen;
  cacheless_pool tested{device, paged_pool::config(8 * page), std::move(policy)};
  const auto take = [&](std::uint64_t bytes) {
    request r;
    r.bytes = bytes;
    address at = 0;
    return tested.allocate(r, bytes, &at, nullptr) ? at : 0;
  };
  std::vector<address> blocks;
  for (int k = 0; k < 8; ++k) blocks.push_back(take(page));
  for (std::size_t k = 1; k < 8; k += 2) EXPECT_TRUE(tested.release_block(blocks[k], {}).ok());
  EXPECT_NE(take(4 * page), 0U);
  EXPECT_EQ(tested.stats().remapped_pages, 0U);
  EXPECT_EQ(tested.stats().returned_pages, 3U) << "one of the four lies where the request goes";
  EXPECT_EQ(tested.stats().reserved_bytes, 8 * page);
  EXPECT_EQ(seen.back().moved_bytes, 3 * page) << "a policy pays for them as for pages that move";
  EXPECT_TRUE(tested.check().ok());
}

TEST(paging, a_policy_hears_that_the_program_repeats) {
  sim_device device;
  auto policy = std::make_unique<page_by_page>(UINT64_MAX, 1 * gib, page, UINT64_MAX);
  std::vector<pool_view> seen;
  policy->seen = &seen;
  cacheless_pool tested{device, paged_pool::config(8 * page), std::move(policy)};
  std::vector<bool> repeats;
  const auto step = [&](std::uint64_t bytes) {
    request r;
    r.bytes = bytes;
    address at = 0;
    ASSERT_TRUE(tested.allocate(r, bytes, &at, nullptr).ok());
    ASSERT_TRUE(tested.release_block(at, {}).ok());
    tested.trim(UINT64_MAX);
    repeats.push_back(seen.back().repeats);
  };
  for (int k = 0; k < 8; ++k) step(page);
  step(2 * page);
  EXPECT_EQ(repeats, (std::vector<bool>{false, false, false, true, true, true, true, true, false}));
  EXPECT_EQ(seen.back().moved_bytes, 0U) << "what `trim` returns makes room for nothing";
}

TEST(paging, another_range_is_reserved_where_the_addresses_run_out) {
  paged_pool p{UINT64_MAX, 8 * page};
  std::vector<address> blocks;
  for (int k = 0; k < 20; ++k) blocks.push_back(p.take(3 * page));
  EXPECT_EQ(std::count(blocks.begin(), blocks.end(), address{0}), 0);
  EXPECT_GE(p.calls(device_call::reserve), 10U);
  EXPECT_NE(p.take(30 * page), 0U) << "longer than a range";
  for (const address at : blocks) p.give(at);
  EXPECT_GT(p.tested.trim(UINT64_MAX).returned_bytes, 0U);
}

TEST(paging, no_more_addresses_is_out_of_memory_and_nothing_else) {
  paged_pool p{UINT64_MAX, 8 * page};
  const address held = p.take(page);
  for (int k = 1; k < 20; ++k)
    p.device.fail_nth(device_call::reserve, static_cast<std::uint64_t>(k), errc::out_of_memory);
  EXPECT_EQ(p.take(9 * page), 0U);
  EXPECT_NE(p.take(page), 0U);
  p.give(held);
}

/// A pool whose policy reserves 64 pages at a time, 16 at least, on a device that refuses the first so many calls.
struct pool_of_few_addresses {
  sim_device device;
  cacheless_pool tested;
  explicit pool_of_few_addresses(int refused, errc with = errc::out_of_memory)
      : tested{device, paged_pool::config(4 * gib), policy_for()} {
    for (int k = 1; k <= refused; ++k) device.fail_nth(device_call::reserve, static_cast<std::uint64_t>(k), with);
  }
  static std::unique_ptr<policy> policy_for() {
    auto made = std::make_unique<page_by_page>(UINT64_MAX, 64 * page, page, UINT64_MAX);
    made->least_range = 16 * page;
    return made;
  }
  [[nodiscard]] address take(std::uint64_t bytes) {
    request r;
    r.bytes = bytes;
    address at = 0;
    return tested.allocate(r, bytes, &at, nullptr) ? at : 0;
  }
  [[nodiscard]] std::uint64_t calls(device_call kind) const { return device.calls()[static_cast<std::size_t>(kind)]; }
};

TEST(paging, a_first_range_that_is_refused_is_halved_down_to_the_least) {
  pool_of_few_addresses p{2};
  EXPECT_NE(p.take(page), 0U);
  EXPECT_EQ(p.calls(device_call::alloc), 0U);
  EXPECT_EQ(p.device.used_bytes(), page) << "a page, behind addresses";
  EXPECT_TRUE(p.tested.check().ok()) << p.tested.check().message();
}

TEST(paging, segments_are_taken_where_no_range_can_be_reserved) {
  for (const errc why : {errc::out_of_memory, errc::device_error}) {
    pool_of_few_addresses p{3, why};
    const address at = p.take(page);
    ASSERT_NE(at, 0U);
    EXPECT_EQ(p.calls(device_call::alloc), 1U);
    EXPECT_NE(p.take(3 * page), 0U);
    EXPECT_EQ(p.calls(device_call::alloc), 2U) << "and from then on";
    EXPECT_EQ(p.calls(device_call::map), 0U);
    EXPECT_FALSE(p.tested.is_mapped(at));
    EXPECT_TRUE(p.tested.release_block(at, {}).ok());
    EXPECT_EQ(p.tested.trim(UINT64_MAX).returned_bytes, page);
    EXPECT_TRUE(p.tested.check().ok()) << p.tested.check().message();
  }
}

TEST(paging, trim_goes_down_to_the_pages_that_live_blocks_touch) {
  paged_pool p;
  const address kept = p.take(512);
  const address gone = p.take(9 * page);
  p.give(gone);
  const trim_result out = p.tested.trim(UINT64_MAX);
  EXPECT_EQ(p.tested.stats().reserved_bytes, page);
  EXPECT_EQ(p.device.used_bytes(), page);
  EXPECT_GE(out.returned_bytes, 9 * page - page);
  EXPECT_EQ(out.in_use_bytes, page - 512);
  EXPECT_EQ(out.pending_bytes, 0U);
  p.give(kept);
}

TEST(paging, a_lower_limit_takes_idle_pages_back) {
  paged_pool p;
  const address a = p.take(4 * page);
  p.give(p.take(8 * page));
  p.tested.cap().set_limit(5 * page);
  EXPECT_EQ(p.tested.trim(p.tested.cap().reserved() - 5 * page).pending_bytes, 0U);
  EXPECT_LE(p.device.used_bytes(), 5 * page);
  p.give(a);
}

TEST(paging, nothing_is_unmapped_while_a_stream_captures) {
  paged_pool p{4 * page};
  const stream_ref s = p.device.create_stream();
  const address a = p.take(2 * page);
  const address wall = p.take(2 * page);
  p.give(a);
  const std::uint64_t key = *p.tested.key_of(s);
  result<pool_capture> capture = (*p.tested).streams().capture_begin(s, key, capture_effect::announced);
  ASSERT_TRUE(capture.ok());
  ASSERT_TRUE(p.device.begin_capture(s).ok());
  EXPECT_NE(p.take(3 * page, s), 0U) << "new pages, beyond what the policy would make";
  EXPECT_EQ(p.calls(device_call::unmap), 0U);
  ASSERT_TRUE(p.device.end_capture(s).ok());
  EXPECT_NE(capture->end(), 0U);
  p.give(wall);
}

// The driver refuses access to a mapped run, which is then unmapped after the capture. Runs that got access become idle
// memory of the pool.
TEST(paging, a_step_that_fails_during_a_capture_is_undone_after_it) {
  paged_pool p;
  const stream_ref s = p.device.create_stream();
  const address a = p.take(page);
  result<pool_capture> capture = (*p.tested).streams().capture_begin(s, *p.tested.key_of(s), capture_effect::announced);
  ASSERT_TRUE(capture.ok());
  ASSERT_TRUE(p.device.begin_capture(s).ok());
  p.device.fail_nth(device_call::set_access, 1);  // of three pages in a row; then each of them is opened
  p.device.fail_nth(device_call::set_access, 3);
  EXPECT_EQ(p.take(3 * page, s), 0U);
  EXPECT_EQ(p.tested.stats().idle_bytes, 2 * page);
  EXPECT_EQ(p.tested.stats().leaked_bytes, page) << "until it can be unmapped";
  EXPECT_EQ(p.device.live_mappings(), 4U);
  EXPECT_NE(p.take(page, s), 0U) << "from the idle ones";
  EXPECT_EQ(p.take(4 * page, s), 0U) << "the addresses of the stranded run are taken";
  EXPECT_EQ(p.calls(device_call::unmap), 0U);
  ASSERT_TRUE(p.device.end_capture(s).ok()) << "spoilt";
  EXPECT_NE(capture->end(), 0U);
  EXPECT_NE(p.take(4 * page, s), 0U);
  EXPECT_EQ(p.tested.stats().leaked_bytes, 0U);
  p.give(a);
}

TEST(paging, a_trim_undoes_what_a_step_left_during_a_capture) {
  paged_pool p;
  const stream_ref s = p.device.create_stream();
  {
    const result<pool_capture> capture =
        (*p.tested).streams().capture_begin(s, *p.tested.key_of(s), capture_effect::announced);
    ASSERT_TRUE(capture.ok());
    for (const std::uint64_t nth : {1U, 2U}) p.device.fail_nth(device_call::set_access, nth);
    EXPECT_EQ(p.take(page, s), 0U);
    EXPECT_EQ(p.tested.trim(UINT64_MAX).returned_bytes, 0U);
    EXPECT_EQ(p.device.used_bytes(), page);
  }
  static_cast<void>(p.tested.trim(UINT64_MAX));
  EXPECT_EQ(p.device.used_bytes(), 0U);
}

TEST(paging, a_pool_that_ends_unmaps_what_a_step_left) {
  paged_pool p;
  const stream_ref s = p.device.create_stream();
  const result<pool_capture> capture =
      (*p.tested).streams().capture_begin(s, *p.tested.key_of(s), capture_effect::announced);
  ASSERT_TRUE(capture.ok());
  for (const std::uint64_t nth : {1U, 2U}) p.device.fail_nth(device_call::set_access, nth);
  EXPECT_EQ(p.take(page, s), 0U);
  EXPECT_EQ(p.device.live_mappings(), 1U);
}

struct failing_call {
  device_call call;
  std::uint64_t nth;
  bool pending = false;  ///< while work on the pages that move is pending
};
class paging_faults : public testing::TestWithParam<failing_call> {};

TEST_P(paging_faults, lose_no_byte_unseen) {
  paged_pool p{8 * page};
  std::vector<address> blocks;
  for (int k = 0; k < 8; ++k) blocks.push_back(p.take(page));
  for (std::size_t k = 0; k < 8; k += 2) p.give(blocks[k]);
  if (!GetParam().pending) p.device.advance_by(100'000'000);
  p.device.fail_nth(GetParam().call, GetParam().nth, errc::device_error);
  const address at = p.take(6 * page);
  EXPECT_TRUE(p.tested.check().ok()) << p.tested.check().message();
  EXPECT_EQ(p.device.used_bytes(), p.tested.stats().reserved_bytes);
  if (at != 0) p.give(at);
  EXPECT_NE(p.take(6 * page), 0U) << "the next one finds a pool that works";
}

INSTANTIATE_TEST_SUITE_P(every_call, paging_faults,
                         testing::Values(failing_call{device_call::create, 1}, failing_call{device_call::create, 2},
                                         failing_call{device_call::map, 1}, failing_call{device_call::map, 4},
                                         failing_call{device_call::set_access, 1}, failing_call{device_call::unmap, 1},
                                         failing_call{device_call::unmap, 2},
                                         failing_call{device_call::create, 1, true},
                                         failing_call{device_call::map, 1, true},
                                         failing_call{device_call::map, 4, true},
                                         failing_call{device_call::set_access, 1, true}));

TEST(paging, a_device_that_is_full_is_no_reason_to_fail_while_pages_are_idle) {
  paged_pool p{UINT64_MAX};
  std::vector<address> blocks;
  for (int k = 0; k < 8; ++k) blocks.push_back(p.take(page));
  for (std::size_t k = 0; k < 8; k += 2) p.give(blocks[k]);
  p.device.set_foreign_bytes(80 * gib - 9 * page);
  EXPECT_NE(p.take(5 * page), 0U) << "four idle pages and the one that is left";
  EXPECT_EQ(p.take(2 * page), 0U);
}

// The device refuses one run of 512 pages, has 450, and gets 100 back that are too long to move into what is missing.
TEST(paging, a_device_that_refuses_a_long_run_is_asked_for_shorter_ones_and_gets_idle_runs_back) {
  paged_pool p{UINT64_MAX, 4 * gib, UINT64_MAX};
  const address first = p.take(100 * page);
  ASSERT_NE(p.take(page), 0U);
  const address second = p.take(100 * page);
  ASSERT_NE(p.take(page), 0U);
  p.give(first);
  p.give(second);
  p.device.advance_by(1'000'000'000);
  p.device.set_foreign_bytes(80 * gib - (202 + 450) * page);
  EXPECT_NE(p.take(512 * page), 0U);
}

TEST(paging, serves_several_threads) {
  paged_pool p{24 * page};
  std::vector<std::thread> threads;
  threads.reserve(4);
  for (unsigned t = 0; t < 4; ++t) {
    threads.emplace_back([&p, t] {
      request r;
      r.stream = p.device.create_stream();
      std::vector<address> mine;
      for (unsigned k = 0; k < 300; ++k) {
        r.bytes = 512 + (k * 7919 + t * 104729) % (3 * page);
        address at = 0;
        if (p.tested.allocate(r, round_up(r.bytes, 512), &at, nullptr)) mine.push_back(at);
        if (mine.size() > 4) {
          EXPECT_TRUE(p.tested.release_block(mine.front(), {}).ok());
          mine.erase(mine.begin());
        }
        if (k % 64 == 63) p.tested.trim(page);
      }
      for (const address at : mine) EXPECT_TRUE(p.tested.release_block(at, {}).ok());
    });
  }
  for (std::thread& t : threads) t.join();
  EXPECT_EQ(p.tested.stats().live_blocks, 0U);
}

}  // namespace
}  // namespace gpumem
