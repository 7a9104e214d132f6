// A pool over a simulated device: requests and frees that the caches serve, that the arena serves, and misuse.
#include "pool.hpp"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <ctime>
#include <map>
#include <thread>

#include "bits.hpp"
#include "cacheless_pool.hpp"
#include "gpumem/sim_device.hpp"
#include "segment_each.hpp"

namespace gpumem {
namespace {

using testing::HasSubstr;

constexpr std::uint64_t at_first = 256 * mib;

using change = std::function<void(pool_config&)>;
pool_config config_with(const change& what) {
  static std::uint64_t number = 3'000'000;
  pool_config config;
  config.reuse = stream_reuse::device;
  config.ordinal = 3;
  config.name = "3 (tested)";
  config.policy_name = "segment_each";
  config.limit_bytes = config.total_bytes = 80 * gib;
  config.allocator_number = ++number;
  if (what) what(config);
  return config;
}
void notify(pool_config& c) { c.stream_ids = stream_id_mode::notify; }

std::unique_ptr<policy> takes_at_first() {
  auto p = std::make_unique<segment_each>();
  p->at_first = at_first;
  return p;
}

/// Its policy takes 256 MiB ahead of demand, and a segment for each request that finds no place there.
struct tested_pool {
  sim_device device;
  std::optional<pool> it;
  stream_ref one = device.create_stream();
  stream_ref two = device.create_stream();
  explicit tested_pool(const change& what = {}) { it.emplace(device, config_with(what), takes_at_first()); }
  ~tested_pool() {
    EXPECT_EQ(it->check().ok(), sound) << it->check().message();
    it.reset();
    EXPECT_EQ(device.used_bytes(), 0U);
  }
  tested_pool(const tested_pool&) = delete;
  tested_pool& operator=(const tested_pool&) = delete;

  /// Allocates like the allocator: from the cache first.
  status allocate(const request& r, address* at, oom_slot* refusal = nullptr) {
    *at = r.alignment == block_granularity && r.region == 0 ? it->try_cache(r.stream, r.bytes) : 0;
    return *at != 0 ? status{} : it->allocate(r, round_up(r.bytes, block_granularity), at, refusal);
  }
  [[nodiscard]] address take(std::uint64_t bytes, stream_ref s = {}) {
    address at = 0;
    const status done = allocate({.bytes = bytes, .stream = s}, &at);
    EXPECT_TRUE(done.ok()) << done.message();
    return at;
  }
  status free(address at, const free_args& stated = {}) {
    return it->free_to_cache(at, stated) ? status{} : it->release_block(at, stated);
  }
  void give(address at, const free_args& stated = {}) { EXPECT_EQ(free(at, stated).message(), ""); }
  /// Makes so many requests below a peak that the caches keep small blocks afterwards (src/cache/retention.hpp). Runs
  /// in a thread that then ends, so that no cache holds a block.
  void calm() {
    std::thread{[this] {
      give(take(16 * mib));
      for (std::uint64_t k = 0; k < 600; ++k) give(take(8 * mib + k * block_granularity));
    }}.join();
  }
  [[nodiscard]] bool is_live(address at) const { return it->describe(at).ok(); }

  bool sound = true;
};

TEST(pool, takes_nothing_before_the_first_request_and_gives_a_freed_block_out_again) {
  tested_pool x;
  EXPECT_EQ(x.device.used_bytes(), 0U);
  const address a = x.take(1000, x.one);
  EXPECT_EQ(x.device.used_bytes(), at_first);
  const statistics held = x.it->stats();
  EXPECT_EQ(held.live_bytes, 1024U);
  EXPECT_EQ(held.requested_bytes, 1000U);
  EXPECT_EQ(held.live_blocks, 1U);
  EXPECT_EQ(held.allocations, 1U);
  EXPECT_EQ(held.locks, 1U);
  x.give(a);
  const statistics freed = x.it->stats();
  EXPECT_EQ(freed.live_bytes, 0U);
  EXPECT_EQ(freed.requested_bytes, 0U);
  EXPECT_EQ(freed.peak_live_bytes, 1024U);
  EXPECT_EQ(freed.frees, 1U);
  EXPECT_EQ(freed.locks, 2U);
  EXPECT_EQ(x.take(1024, x.one), a);
}

TEST(pool, opens_ahead_of_demand_once) {
  tested_pool x;
  EXPECT_TRUE(x.it->open_ahead().ok());
  EXPECT_TRUE(x.it->open_ahead().ok());
  EXPECT_EQ(x.device.used_bytes(), at_first);
  EXPECT_EQ(x.it->stats().got_at_start_bytes, at_first);
}

TEST(pool, describes_a_live_block_by_any_address_in_it) {
  tested_pool x;
  const address a = x.take(1000);
  const block_info of = *x.it->describe(a + 1023);
  EXPECT_EQ(of.begin, a);
  EXPECT_EQ(of.bytes, 1024U);
  EXPECT_EQ(of.requested_bytes, 1000U);
  EXPECT_EQ(of.segment_bytes, at_first);
  EXPECT_EQ(of.device, 3);
  EXPECT_FALSE(of.mapped);
  EXPECT_TRUE(x.it->contains(of.segment_begin));
  EXPECT_TRUE(x.it->contains(of.segment_begin + at_first - 1));
  EXPECT_FALSE(x.it->contains(of.segment_begin + at_first));
  EXPECT_EQ(x.it->describe(a + 1024).code(), errc::unknown_pointer) << "free memory of the pool";
  x.give(a);
  EXPECT_EQ(x.it->describe(a).code(), errc::unknown_pointer);
  EXPECT_TRUE(x.it->contains(a));
}

TEST(pool, once_calm_serves_and_takes_back_without_the_lock) {
  tested_pool x;
  x.calm();
  for (const stream_ref s : {stream_ref{}, x.one}) {
    const address a = x.take(1000, s);
    x.give(a);
    const statistics before = x.it->stats();
    EXPECT_EQ(x.take(900, s), a) << "for a created stream `allocate` asks the cache";
    const statistics taken = x.it->stats();
    EXPECT_EQ(taken.live_bytes, before.live_bytes + 1024);
    EXPECT_EQ(taken.requested_bytes, before.requested_bytes + 900);
    EXPECT_EQ(taken.thread_cached_bytes + 1024, before.thread_cached_bytes);
    x.give(a, {.stream = s, .bytes = 900});
    const statistics after = x.it->stats();
    EXPECT_EQ(after.allocations, before.allocations + 1);
    EXPECT_EQ(after.frees, before.frees + 1);
    EXPECT_EQ(after.requested_bytes, before.requested_bytes);
    EXPECT_EQ(after.thread_cached_bytes, before.thread_cached_bytes);
    EXPECT_EQ(after.locks, before.locks);
  }
  EXPECT_EQ(x.it->try_cache({}, 4000), 0U) << "of a size that nobody freed";
}

TEST(pool, a_cached_block_is_found_under_the_lock_too) {
  tested_pool x;
  x.calm();
  const address a = x.take(1024);
  x.give(a);
  address at = 0;
  ASSERT_TRUE(x.it->allocate({.bytes = 1024}, 1024, &at, nullptr).ok());
  EXPECT_EQ(at, a);
  x.give(at);
  ASSERT_TRUE(x.it->allocate({.bytes = 1024, .alignment = mib}, 1024, &at, nullptr).ok());
  EXPECT_EQ(at % mib, 0U) << "a cache knows no alignment";
}

TEST(pool, without_caches_every_call_takes_the_lock) {
  tested_pool x{[](pool_config& c) { c.thread_cache = false; }};
  x.calm();
  const std::uint64_t locks = x.it->stats().locks;
  for (int k = 0; k < 3; ++k) x.give(x.take(1024));
  EXPECT_EQ(x.it->stats().locks, locks + 6);
  EXPECT_EQ(x.it->stats().thread_cached_bytes, 0U);
}

TEST(pool, refuses_a_wrong_free_and_leaves_the_block_as_it_is) {
  for (const bool calm : {false, true}) {
    tested_pool x;
    if (calm) x.calm();
    const address a = x.take(1000);
    const address freed = x.take(3000);
    x.give(freed);
    EXPECT_EQ(x.it->stats().thread_cached_bytes, calm ? 3072U : 0U) << "the second free is of either kind";
    const auto expect_refused = [&x](address at, const free_args& stated, errc code, const char* says) {
      const status got = x.free(at, stated);
      EXPECT_EQ(got.code(), code) << got.message();
      EXPECT_THAT(got.message(), HasSubstr(says));
    };
    const statistics before = x.it->stats();
    expect_refused(freed, {}, errc::double_free, "a second free?");
    expect_refused(a, {.bytes = 1024}, errc::wrong_size, "allocated with 1000 bytes and is freed with 1024");
    expect_refused(a, {.stream = x.one, .bytes = 1001}, errc::wrong_size, "is freed with 1001");
    EXPECT_EQ(x.it->stats().misuses, before.misuses + 3);
    expect_refused(a + 512, {}, errc::unknown_pointer, "lies inside a block of pool 3 (tested), which begins at");
    expect_refused(4096, {}, errc::unknown_pointer, "0x1000 is not a block of pool 3 (tested)");
    EXPECT_EQ(x.it->stats().misuses, before.misuses + 3) << "another pool's, maybe: the allocator counts it";
    x.it->count_misuse();
    EXPECT_EQ(x.it->stats().misuses, before.misuses + 4);
    EXPECT_EQ(x.it->stats().frees, before.frees);
    EXPECT_EQ(x.it->describe(a)->requested_bytes, 1000U);
    x.give(a, {.stream = stream_ref{}, .bytes = 1000});
    expect_refused(a, {}, errc::double_free, "a second free?");
  }
}

TEST(pool, a_free_may_name_a_stream_that_was_destroyed_if_the_pool_has_seen_it) {
  tested_pool x;
  const address own = x.take(2 * mib, x.one);
  const address others = x.take(2 * mib);
  const address kept = x.take(2 * mib);
  const stream_ref unseen = x.device.create_stream();
  x.give(x.take(mib, x.two));
  for (const stream_ref s : {x.one, x.two, unseen}) ASSERT_TRUE(x.device.destroy_stream(s).ok());
  x.give(own, {.stream = x.one});
  x.give(others, {.stream = x.two});
  EXPECT_EQ(x.free(kept, {.stream = unseen}).code(), errc::device_error);
  const std::uint64_t asked = x.device.calls()[static_cast<std::size_t>(device_call::stream_id)];
  EXPECT_EQ(x.free(4096, {.stream = unseen}).code(), errc::unknown_pointer) << "another pool's block, maybe";
  EXPECT_EQ(x.device.calls()[static_cast<std::size_t>(device_call::stream_id)], asked) << "of a handle that is gone";
  EXPECT_TRUE(x.is_live(kept));
  address at = 0;
  EXPECT_EQ(x.allocate({.bytes = 512, .stream = x.one}, &at).code(), errc::device_error);
  EXPECT_EQ(x.it->record_use(kept, x.one).code(), errc::device_error);
}

TEST(pool, under_notify_the_handle_is_the_key) {
  tested_pool x{notify};
  x.calm();
  x.give(x.take(1024, x.one));
  const statistics before = x.it->stats();
  const std::uint64_t asked = x.device.calls()[static_cast<std::size_t>(device_call::stream_id)];
  const address a = x.it->try_cache(x.one, 1024);
  EXPECT_NE(a, 0U);
  EXPECT_TRUE(x.it->free_to_cache(a, {.stream = x.one}));
  EXPECT_EQ(x.it->stats().locks, before.locks);
  EXPECT_EQ(*x.it->streams().key_of(x.one), reinterpret_cast<std::uintptr_t>(x.one.handle));
  EXPECT_EQ(x.device.calls()[static_cast<std::size_t>(device_call::stream_id)], asked);
}

TEST(pool, a_block_that_another_stream_uses_is_freed_by_the_lock_and_waits) {
  tested_pool x;
  x.calm();
  x.give(x.take(1024, x.one));
  const address a = x.take(1024, x.one);
  EXPECT_TRUE(x.it->record_use(a, x.one).ok());
  EXPECT_TRUE(x.it->free_to_cache(a, {})) << "the stream's own use is none";
  ASSERT_EQ(x.take(1024, x.one), a);
  ASSERT_TRUE(x.it->record_use(a + 700, x.two).ok()) << "inside the block";
  x.device.enqueue(x.two, 1'000'000);
  EXPECT_FALSE(x.it->free_to_cache(a, {}));
  EXPECT_TRUE(x.it->release_block(a, {}).ok());
  EXPECT_EQ(x.it->stats().fenced_bytes, 1024U);
  EXPECT_NE(x.take(1024, x.one), a);
  EXPECT_EQ(x.it->record_use(a, x.two).code(), errc::unknown_pointer) << "free";
  EXPECT_EQ(x.it->record_use(a + 8, x.two).code(), errc::unknown_pointer);
  EXPECT_EQ(x.it->record_use(4096, x.two).code(), errc::unknown_pointer);
  EXPECT_EQ(x.free(a).code(), errc::double_free);
  x.device.advance_by(2'000'000);
  EXPECT_EQ(x.it->trim(0).pending_bytes, 0U);
}

/// CPU seconds of this thread.
double cpu_seconds() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) * 1e-9;
}

std::uint64_t asked_for_ids(const tested_pool& x) {
  return x.device.calls()[static_cast<std::size_t>(device_call::stream_id)];
}

// A walk over all blocks of the segment takes some 100 times as long as the free, so a factor of ten detects it.
TEST(pool, a_free_that_states_its_stream_costs_as_much_as_a_plain_one) {
  tested_pool x;
  std::vector<address> all;
  for (int k = 0; k < 200'000; ++k) all.push_back(x.take(512, x.one));
  const std::uint64_t asked = asked_for_ids(x);
  const auto free_some = [&](const free_args& stated) {
    const double begin = cpu_seconds();
    for (std::size_t k = 0; k < 1'000; ++k) {
      const std::size_t which = k * 7919 % all.size();
      x.give(all[which], stated);
      all[which] = all.back();
      all.pop_back();
    }
    return cpu_seconds() - begin;
  };
  double plain = free_some({});
  double stated = free_some({.stream = x.one});
  for (int k = 0; k < 3; ++k) {
    plain = std::min(plain, free_some({}));
    stated = std::min(stated, free_some({.stream = x.one}));
  }
  EXPECT_LT(stated, 10 * plain);
  EXPECT_EQ(asked_for_ids(x), asked) << "the handle is looked up, and may be dead";
}

TEST(pool, a_free_that_states_the_blocks_own_stream_asks_no_driver_even_when_that_has_ended) {
  for (const bool is_told : {true, false}) {
    tested_pool x;
    const address a = x.take(mib, x.one);
    const address b = x.take(mib, x.one);
    const std::uint64_t key = *x.it->streams().key_of(x.one);
    x.give(a, {.stream = x.one});
    if (is_told) {
      ASSERT_TRUE(x.it->streams().stream_release(key).ok());
    }
    ASSERT_TRUE(x.device.destroy_stream(x.one).ok());
    const std::uint64_t asked = asked_for_ids(x);
    x.give(b, {.stream = x.one});
    EXPECT_EQ(x.free(b, {.stream = x.one}).code(), errc::double_free);
    EXPECT_EQ(x.free(4096, {.stream = x.one}).code(), errc::unknown_pointer);
    EXPECT_EQ(asked_for_ids(x), asked);
    EXPECT_EQ(x.it->stats().streams, 1U) << "no slot for a handle that is dead";
  }
}

TEST(pool, a_free_that_states_its_created_stream_takes_no_lock_where_the_cache_has_room) {
  tested_pool x;
  x.calm();
  for (int k = 0; k < 2; ++k) x.give(x.take(1000, x.one), {.stream = x.one});
  const address a = x.take(1000, x.one);
  const std::uint64_t locks = x.it->stats().locks;
  EXPECT_TRUE(x.it->free_to_cache(a, {.stream = x.one, .bytes = 1000}));
  const address b = x.take(1000, x.one);
  EXPECT_EQ(b, a);
  EXPECT_FALSE(x.it->free_to_cache(b, {.stream = x.two}));
  EXPECT_EQ(x.it->stats().locks, locks);
  x.give(b);
}

TEST(pool, more_streams_on_a_thread_than_it_has_caches_for_still_hit) {
  tested_pool x;
  x.calm();
  std::vector<stream_ref> streams;
  for (std::uint32_t k = 0; k <= thread_cache::most_streams; ++k) streams.push_back(x.device.create_stream());
  const auto use_each = [&](unsigned times) {
    for (unsigned k = 0; k < times; ++k) {
      for (const stream_ref s : streams) x.give(x.take(512, s));
    }
  };
  use_each(10);
  const std::uint64_t before = x.it->stats().locks;
  use_each(100);
  EXPECT_LT(x.it->stats().locks - before, 100 * streams.size() / 5) << "of so many pairs";
}

TEST(pool, streams_that_come_and_go_without_a_word_leave_nothing_behind) {
  tested_pool x;
  x.calm();
  const auto use_streams = [&](unsigned count) {
    for (unsigned k = 0; k < count; ++k) {
      const stream_ref s = x.device.create_stream();
      for (int pair = 0; pair < 2; ++pair) x.give(x.take(mib, s));
      x.give(x.take(512, s), {.stream = s});
      ASSERT_TRUE(x.device.destroy_stream(s).ok());
    }
  };
  use_streams(2'000);
  const statistics before = x.it->stats();
  use_streams(10'000);
  const statistics after = x.it->stats();
  EXPECT_LE(after.streams, 400U) << "three times those that the cache of this thread keeps";
  EXPECT_LE(after.metadata_bytes, before.metadata_bytes * 5 / 4);
}

TEST(pool, what_a_region_owns_stays_out_of_the_caches) {
  tested_pool x;
  x.calm();
  x.give(x.take(1000));
  const std::uint64_t region = x.it->streams().open_region({}, 0);
  address a = 0;
  ASSERT_TRUE(x.allocate({.bytes = 1000, .region = region}, &a).ok());
  EXPECT_EQ(x.it->describe(a)->requested_bytes, 1000U);
  EXPECT_FALSE(x.it->free_to_cache(a, {}));
  EXPECT_EQ(x.free(a, {.bytes = 512}).code(), errc::wrong_size);
  x.give(a, {.bytes = 1000});
  address again = 0;
  ASSERT_TRUE(x.allocate({.bytes = 1000, .region = region, .place = a}, &again).ok());
  EXPECT_EQ(again, a);
  EXPECT_EQ(x.allocate({.bytes = 1000, .region = region + 7}, &again).code(), errc::invalid_argument);
  x.give(a);
}

TEST(pool, a_free_behind_all_work_is_set_aside_until_a_lock_is_taken) {
  tested_pool x{notify};
  const address a = x.take(mib, x.one);
  EXPECT_FALSE(x.it->free_behind_all_work(a)) << "no stream stands for all work";
  ASSERT_TRUE(x.it->streams().stand_for_all_work(x.two).ok());
  x.device.enqueue(x.one, 1'000'000);
  ASSERT_TRUE(x.it->free_behind_all_work(a));
  EXPECT_FALSE(x.it->free_behind_all_work(a)) << "a second free";
  EXPECT_FALSE(x.is_live(a));
  EXPECT_EQ(x.it->stats().live_bytes, 0U);
  EXPECT_NE(x.take(mib, x.one), a);
  x.device.advance_by(2'000'000);
  const address b = x.take(mib, x.one);
  const std::uint64_t fences = x.it->stats().fences;
  for (int k = 0; k < 20; ++k) x.give(x.take(mib, x.one), {.stream = x.two});
  EXPECT_GT(x.it->stats().fences, fences) << "by the lock, one for several";
  EXPECT_TRUE(x.is_live(b));
}

TEST(pool, tells_of_every_free_in_order_and_then_serves_by_the_lock_alone) {
  struct told {
    address at;
    std::uint64_t bytes;
    stream_ref order;
    bool operator==(const told&) const = default;
  };
  std::vector<told> all;
  tested_pool x{[&all](pool_config& c) {
    c.before_free = [&all](address at, std::uint64_t bytes, stream_ref s) { all.push_back({at, bytes, s}); };
  }};
  x.calm();
  all.clear();
  const address a = x.take(1000, x.one);
  const address b = x.take(2000);
  EXPECT_EQ(x.free(a, {.bytes = 1}).code(), errc::wrong_size);
  x.give(a, {.stream = x.two});
  x.give(b);
  EXPECT_EQ(all, (std::vector<told>{{a, 1000, x.two}, {b, 2000, {}}})) << "a free that is refused is none";
  EXPECT_EQ(x.it->try_cache({}, 2000), 0U);
}

TEST(pool, a_request_that_finds_no_room_is_refused_with_a_report_and_nothing_is_lost) {
  tested_pool x{[](pool_config& c) { c.limit_bytes = at_first; }};
  x.calm();
  const address a = x.take(mib);
  x.give(x.take(2000));
  ASSERT_NE(x.it->stats().thread_cached_bytes, 0U);
  address at = 0;
  oom_slot report;
  const status refused = x.allocate({.bytes = at_first - 1000}, &at, &report);
  EXPECT_EQ(refused.code(), errc::out_of_memory);
  ASSERT_NE(report, nullptr);
  EXPECT_EQ(report->headline(), refused.message());
  EXPECT_EQ(report->cause, oom_cause::limit);
  EXPECT_EQ(report->pool, "3 (tested)");
  EXPECT_EQ(report->requested_bytes, at_first - 1000);
  EXPECT_EQ(report->rounded_bytes, at_first - 512);
  EXPECT_EQ(report->pool_statistics.live_bytes, mib);
  EXPECT_EQ(report->pool_statistics.thread_cached_bytes, 0U) << "the caches were emptied for it";
  EXPECT_EQ(x.allocate({.bytes = at_first}, &at).code(), errc::out_of_memory);
  EXPECT_EQ(x.it->stats().out_of_memory, 2U);
  x.give(x.take(2000));
  EXPECT_EQ(x.it->stats().thread_cached_bytes, 0U) << "they were told to keep less";
  x.give(a);
  x.give(x.take(at_first));
}

TEST(pool, a_refusal_reports_what_the_pool_did_before_it) {
  tested_pool x;
  const address a = x.take(300 * mib);
  x.it->set_limit(400 * mib);
  address at = 0;
  for (std::size_t times = 1; times <= 2; ++times) {
    oom_slot report;
    EXPECT_EQ(x.allocate({.bytes = 512 * mib}, &at, &report).code(), errc::out_of_memory);
    ASSERT_NE(report, nullptr);
    const std::vector<std::string>& events = report->recent_events;
    ASSERT_GE(events.size(), 2U);
    EXPECT_LE(events.size(), oom_report::most_events);
    const std::string expected = times == 1 ? fmt::format(" s limit_set {} reserved ", 400 * mib)
                                            : fmt::format(" s request_refused {} reserved ", 512 * mib);
    EXPECT_THAT(events, ::testing::Contains(HasSubstr(expected)));
    EXPECT_THAT(report->to_string(), HasSubstr("\nevent: " + events.back()));
  }
  x.give(a);
}

TEST(pool, trim_gives_idle_segments_back_and_says_what_stays) {
  tested_pool x;
  const address a = x.take(300 * mib);
  x.calm();
  x.give(x.take(1024));
  ASSERT_EQ(x.it->stats().thread_cached_bytes, 1024U);
  const trim_result first = x.it->trim(UINT64_MAX);
  EXPECT_EQ(first.returned_bytes, at_first) << "what a cache held of it is no reason to stay";
  EXPECT_EQ(x.device.used_bytes(), 300 * mib);
  x.it->reset_peak_reserved();
  EXPECT_EQ(x.it->stats().peak_reserved_bytes, 300 * mib);
  x.give(a);
  const address b = x.take(mib);
  EXPECT_EQ(x.it->trim(UINT64_MAX).in_use_bytes, 299 * mib);
  x.give(b);
}

TEST(pool, a_lower_limit_gives_back_what_it_can_and_says_what_is_over) {
  tested_pool x;
  const address a = x.take(300 * mib);
  const address b = x.take(mib);
  x.it->set_limit(100 * mib);
  const limit_result over = x.it->trim_to_limit(100 * mib);
  EXPECT_EQ(over.limit_bytes, 100 * mib);
  EXPECT_EQ(over.reserved_bytes, 300 * mib + at_first);
  EXPECT_EQ(over.over_bytes, 200 * mib + at_first);
  EXPECT_EQ(over.live_bytes, 301 * mib);
  EXPECT_THAT(over.to_string(), HasSubstr("456.00 MiB over it could not be given back (301.00 MiB live"));
  address at = 0;
  EXPECT_EQ(x.allocate({.bytes = 300 * mib}, &at).code(), errc::out_of_memory);
  x.give(a);
  x.give(b);
  const limit_result within = x.it->trim_to_limit(100 * mib);
  EXPECT_EQ(within.over_bytes, 0U);
  EXPECT_EQ(within.trimmed.returned_bytes, 300 * mib + at_first);
  EXPECT_EQ(within.to_string(), "limit 100.00 MiB, 0 B reserved");
}

TEST(pool, a_thread_that_ends_leaves_its_blocks_and_its_figures_to_the_pool) {
  tested_pool x;
  x.calm();
  const statistics before = x.it->stats();
  std::thread{[&x] {
    for (int k = 0; k < 10; ++k) x.give(x.take(1024));
    EXPECT_EQ(x.it->stats().thread_cached_bytes, 1024U);
  }}.join();
  const statistics after = x.it->stats();
  EXPECT_EQ(after.thread_cached_bytes, 0U);
  EXPECT_EQ(after.allocations, before.allocations + 10);
  EXPECT_EQ(after.frees, before.frees + 10);
  EXPECT_LT(after.locks, before.locks + 10);
}

TEST(pool, lists_its_segments_block_by_block) {
  tested_pool x;
  x.calm();
  const address live = x.take(1000);
  x.give(x.take(5000, x.one));
  const std::vector<segment_view> all = x.it->segments();
  ASSERT_EQ(all.size(), 1U);
  EXPECT_EQ(all[0].bytes, at_first);
  std::map<block_view::state, std::uint64_t> bytes;
  for (const block_view& b : all[0].blocks) {
    bytes[b.is] += b.bytes;
    EXPECT_EQ(b.requested_bytes, b.begin == live ? 1000U : 0U);
  }
  EXPECT_EQ(bytes[block_view::state::live], 1024U);
  EXPECT_GE(bytes[block_view::state::cached], 5120U) << "in the thread's cache";
  EXPECT_EQ(bytes[block_view::state::live] + bytes[block_view::state::cached] + bytes[block_view::state::idle],
            at_first);
}

TEST(pool, check_finds_bytes_that_do_not_add_up) {
  tested_pool x;
  const address a = x.take(1000);
  const auto add_requested = [&x](std::uint64_t bytes) {
    arena_state& state = pool_parts::arena_of(*x.it).state;
    const arena_lock lock{state.mutex};
    state.counts.requested_bytes += bytes;
  };
  add_requested(1);
  EXPECT_EQ(x.it->check().code(), errc::corrupt);
  EXPECT_THAT(x.it->check().message(), HasSubstr("requested bytes and their sum: 1001 and 1000"));
  add_requested(99);
  EXPECT_THAT(x.it->check().message(), HasSubstr("more requested than live: 1100 and 1024"));
  add_requested(0ULL - 100);
  EXPECT_TRUE(x.it->check().ok());
  {
    arena& parts = pool_parts::arena_of(*x.it);
    const arena_lock lock{parts.state.mutex};
    const block_index i = parts.state.blocks.containing(a);
    parts.free_block(i, parts.state.blocks.at(i).owner);  // behind the pool's back
  }
  EXPECT_THAT(x.it->check().message(), HasSubstr("pointer slots and blocks out of the heap differ: 1 and 0"));
  x.sound = false;
}

}  // namespace
}  // namespace gpumem
