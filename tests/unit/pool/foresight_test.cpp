// Where a pool that moves pages puts large requests: a step that repeats soon moves none, whatever it is made of.
#include <gtest/gtest.h>

#include <map>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "bits.hpp"
#include "gpumem/sim_device.hpp"
#include "pool.hpp"

namespace gpumem {
namespace {

constexpr std::uint64_t page = 2 * mib;

/// Makes new pages up to the most that was live, one by one.
struct no_slack final : policy {
  bool ahead;
  explicit no_slack(bool looks_ahead) : ahead{looks_ahead} {}
  [[nodiscard]] page_rules pages(const pool_view& view) const override {
    return {.range_bytes = 4 * view.total_bytes, .lowest_fit_bytes = 16 * mib, .looks_ahead = ahead};
  }
  [[nodiscard]] page_request page_in(const pool_view& view, std::uint64_t need, std::uint64_t missing) const override {
    const std::uint64_t peak = round_up(std::max(view.peak_live_bytes, view.live_bytes + need), page);
    const std::uint64_t room = peak > view.reserved_bytes ? peak - view.reserved_bytes : 0;
    return {.make_bytes = std::min(room, missing), .run_bytes = page};
  }
  segment_request grow(const pool_view&, std::uint64_t need) override { return {.bytes = need, .least_bytes = need}; }
};

/// A step of a program: blocks in the order in which they are asked for, and after how many further requests each is
/// freed, maybe in the next step.
struct repeating_step {
  std::vector<std::uint64_t> bytes;
  std::vector<unsigned> life;

  explicit repeating_step(unsigned seed) {
    std::mt19937 random{seed};
    const std::size_t blocks = 3 + random() % 6;
    for (std::size_t k = 0; k < blocks; ++k) {
      bytes.push_back((8 + 4 * (random() % 7)) * page);
      life.push_back(static_cast<unsigned>(1 + random() % (blocks + 1)));
    }
  }
};

struct played_pool {
  sim_device device;
  pool tested;
  std::multimap<unsigned, address> ends;  // by the number of the request after which it is freed
  unsigned requests = 0;

  explicit played_pool(bool ahead = true, bool caches = false)
      : tested{device, config(caches), std::make_unique<no_slack>(ahead)} {}
  ~played_pool() {
    EXPECT_TRUE(tested.check().ok()) << tested.check().message();
    EXPECT_EQ(device.hazard_count(), 0U);
  }
  played_pool(const played_pool&) = delete;
  played_pool& operator=(const played_pool&) = delete;

  static pool_config config(bool caches) {
    pool_config p;
    p.name = "0";
    p.limit_bytes = 40 * gib;
    p.total_bytes = 80 * gib;
    p.thread_cache = caches;
    return p;
  }
  address take(std::uint64_t bytes, stream_ref s = {}) {
    request r;
    r.bytes = bytes;
    r.stream = s;
    address at = 0;
    const status got = tested.allocate(r, round_up(bytes, 512), &at, nullptr);
    EXPECT_TRUE(got.ok()) << got.message();
    device.handed_out(at, bytes, s);
    device.enqueue_use(s, 1000, at, bytes);
    return at;
  }
  void give(address at) {
    device.given_back(at);
    EXPECT_TRUE(tested.release_block(at, {}).ok());
  }
  void play(const repeating_step& step) {
    for (std::size_t k = 0; k < step.bytes.size(); ++k) {
      device.advance_by(100'000);
      ++requests;
      for (auto [it, end] = ends.equal_range(requests); it != end; it = ends.erase(it)) give(it->second);
      ends.emplace(requests + step.life[k], take(step.bytes[k]));
    }
  }
  [[nodiscard]] std::uint64_t moved() { return tested.stats().remapped_pages; }
};

constexpr unsigned steps_until_settled = 20;
constexpr unsigned steps_watched = 10;

struct settled {
  unsigned moving = 0;           ///< steps that still move pages after twenty repetitions
  std::uint64_t moved_late = 0;  ///< pages that these and all others move then, in ten more
};

settled play_a_hundred(bool ahead, bool caches) {
  settled out;
  for (unsigned seed = 0; seed < 100; ++seed) {
    const repeating_step step{seed};
    played_pool p{ahead, caches};
    for (unsigned k = 0; k < steps_until_settled; ++k) p.play(step);
    const std::uint64_t before = p.moved();
    for (unsigned k = 0; k < steps_watched; ++k) p.play(step);
    if (p.moved() != before) ++out.moving;
    out.moved_late += p.moved() - before;
  }
  return out;
}

TEST(foresight, most_steps_that_repeat_come_to_move_no_page) {
  const settled without = play_a_hundred(false, false);
  for (const bool caches : {false, true}) {
    const settled with = play_a_hundred(true, caches);
    const std::string of = caches ? "_with_caches" : "";  // docs/expandable.md quotes these
    RecordProperty("moving_without", std::to_string(without.moving));
    RecordProperty("moving" + of, std::to_string(with.moving));
    RecordProperty("moved_late_without", std::to_string(without.moved_late));
    RecordProperty("moved_late" + of, std::to_string(with.moved_late));
    EXPECT_LE(with.moving, 25U);
    EXPECT_GE(without.moving, 2 * with.moving);
    EXPECT_GE(without.moved_late, 3 * with.moved_late);
  }
}

// That goes on for as long as the step is repeated: what moves none because blocks lie elsewhere than they usually
// would still lies there after thousands of requests.
TEST(foresight, a_step_that_has_come_to_move_no_page_goes_on_so) {
  unsigned settled_ones = 0;
  unsigned awoken = 0;
  for (unsigned seed = 0; seed < 50; ++seed) {
    const repeating_step step{seed};
    played_pool p;
    for (unsigned k = 0; k < steps_until_settled; ++k) p.play(step);
    const std::uint64_t before = p.moved();
    for (unsigned k = 0; k < steps_watched; ++k) p.play(step);
    if (before == 0 || p.moved() != before) continue;
    ++settled_ones;
    for (unsigned k = 0; k < 400; ++k) p.play(step);
    if (p.moved() != before) ++awoken;
  }
  EXPECT_GE(settled_ones, 20U);
  EXPECT_EQ(awoken, 0U);
}

// The lock is given up while pages move and fences are waited for, so what a thread found is looked at again.
TEST(foresight, holds_where_several_threads_repeat_steps_of_their_own) {
  played_pool p{true, true};
  std::vector<std::thread> threads;
  threads.reserve(4);
  for (unsigned t = 0; t < 4; ++t) {
    threads.emplace_back([&p, t] {
      const repeating_step step{t};
      const stream_ref mine = p.device.create_stream();
      std::multimap<unsigned, address> ends;
      unsigned requests = 0;
      for (unsigned k = 0; k < 60; ++k) {
        for (std::size_t n = 0; n < step.bytes.size(); ++n) {
          ++requests;
          for (auto [it, end] = ends.equal_range(requests); it != end; it = ends.erase(it)) p.give(it->second);
          ends.emplace(requests + step.life[n], p.take(step.bytes[n], mine));
        }
        if (k % 16 == 15) p.tested.trim(page);
      }
      for (const auto& [when, at] : ends) p.give(at);
    });
  }
  for (std::thread& t : threads) t.join();
  EXPECT_EQ(p.tested.stats().live_blocks, 0U);
  EXPECT_GT(p.moved(), 0U);
}

// Only a pool that looks ahead remembers, and only once large blocks come.
TEST(foresight, costs_nothing_in_what_is_kept_until_large_blocks_come) {
  played_pool without{false};
  const std::uint64_t none = without.tested.stats().metadata_bytes;
  without.give(without.take(16 * page));
  EXPECT_LT(without.tested.stats().metadata_bytes - none, 128 * kib);
  played_pool p;
  const std::uint64_t before = p.tested.stats().metadata_bytes;
  p.give(p.take(page));
  EXPECT_LT(p.tested.stats().metadata_bytes - before, 128 * kib);
  p.give(p.take(16 * page));
  p.give(p.take(16 * page));
  EXPECT_GT(p.tested.stats().metadata_bytes - before, 256 * kib) << "what was asked for is remembered, and counted";
  EXPECT_LT(p.tested.stats().metadata_bytes - before, mib);
}

}  // namespace
}  // namespace gpumem
