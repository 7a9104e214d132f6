#include "heap.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <ctime>
#include <random>
#include <vector>

namespace gpumem {
namespace {

constexpr std::uint64_t base = 0x1000'0000;

struct one_segment {
  heap h{1};
  owner_id a = h.add_owner();
  owner_id b = h.add_owner();
  explicit one_segment(std::uint64_t bytes = 64 * 512) { h.add_segment(base, bytes, 0); }

  block_index take(owner_id o, std::uint64_t bytes, std::uint64_t alignment = 512) {
    const block_index from = h.free_blocks().best_fit(0, o, true, bytes, alignment);
    if (from == no_block) return no_block;
    const block_index i = h.carve(from, bytes, alignment);
    h.at(i).owner = o;
    return i;
  }
  void sound() const { ASSERT_TRUE(h.validate().ok()) << h.validate().message(); }
};

TEST(heap, splits_off_every_remainder_and_merges_both_sides) {
  one_segment x;
  const block_index p = x.take(x.a, 512);
  const block_index q = x.take(x.a, 1024);
  const block_index r = x.take(x.a, 512);
  EXPECT_EQ(x.h.at(p).begin, base);
  EXPECT_EQ(x.h.at(q).begin, base + 512);
  EXPECT_EQ(x.h.at(r).begin, base + 1536);
  x.sound();
  x.h.release(p, x.a, 1, true);
  x.h.release(r, x.a, 1, true);
  x.sound();
  EXPECT_EQ(x.h.totals().free_blocks, 2U);
  x.h.release(q, x.a, 1, true);
  x.sound();
  EXPECT_EQ(x.h.totals().free_blocks, 1U);
  EXPECT_EQ(x.h.free_blocks().largest_bytes(), 64U * 512);
}

TEST(heap, blocks_of_two_owners_are_not_merged_until_they_are_idle) {
  one_segment x;
  const block_index p = x.take(x.a, 512);
  const block_index q = x.take(x.b, 512);
  x.h.release(p, x.a, 1, false);
  x.h.release(q, x.b, 1, false);
  x.sound();
  EXPECT_EQ(x.h.totals().free_blocks, 3U);
  EXPECT_EQ(x.h.totals().cached_bytes, 1024U);
  x.h.make_idle(x.a, 1);
  x.h.make_idle(x.b, 1);
  x.sound();
  EXPECT_TRUE(x.h.segment_idle(0));
}

TEST(heap, settles_only_up_to_the_epoch_and_keeps_the_rest_for_its_owner) {
  one_segment x;
  const block_index p = x.take(x.a, 512);
  const block_index q = x.take(x.b, 512);
  const block_index r = x.take(x.a, 512);
  x.h.release(p, x.a, 1, false);
  x.h.release(r, x.a, 2, false);
  x.h.make_idle(x.a, 1);
  x.sound();
  EXPECT_EQ(x.h.totals().cached_bytes, 512U);
  x.h.make_idle(x.a, 2, true);
  x.sound();
  EXPECT_EQ(x.h.totals().leaked_bytes, 512U);
  EXPECT_EQ(x.h.free_blocks().best_fit(0, x.a, false, 512, 512), no_block);
  x.h.release(q, x.b, 1, false);
  x.sound();
}

TEST(heap, absorbs_idle_neighbours_across_whole_runs) {
  one_segment x{8 * 512};
  std::vector<block_index> eighths;
  for (int i = 0; i < 8; ++i) eighths.push_back(x.take(i % 2 == 0 ? x.a : x.b, 512));
  for (int i = 0; i < 8; ++i) x.h.release(eighths[static_cast<std::size_t>(i)], i % 2 == 0 ? x.a : x.b, 1, false);
  x.h.make_idle(x.b, 1);
  x.sound();
  EXPECT_EQ(x.h.totals().free_blocks, 8U);
  EXPECT_EQ(x.h.free_blocks().best_fit(0, x.a, true, 1024, 512), no_block);
  EXPECT_TRUE(x.h.absorb_idle(x.a));
  x.sound();
  EXPECT_EQ(x.h.totals().free_blocks, 1U);
  EXPECT_NE(x.h.free_blocks().best_fit(0, x.a, false, 8 * 512, 512), no_block);
  EXPECT_FALSE(x.h.absorb_idle(x.a));
}

TEST(heap, an_aligned_request_leaves_its_prefix_free) {
  one_segment x;
  const block_index first = x.take(x.a, 512);
  const block_index aligned = x.take(x.a, 1024, 4096);
  EXPECT_EQ(x.h.at(aligned).begin, base + 4096);
  x.sound();
  EXPECT_EQ(x.h.totals().free_blocks, 2U);
  x.h.release(aligned, x.a, 1, true);
  x.h.release(first, x.a, 1, true);
  x.sound();
  EXPECT_EQ(x.h.totals().free_blocks, 1U);
}

TEST(heap, classes_have_segments_of_their_own) {
  heap h{2};
  const owner_id o = h.add_owner();
  h.add_segment(base, 8 * 512, 0);
  h.add_segment(2 * base, 8 * 512, 1);
  EXPECT_EQ(h.at(h.free_blocks().best_fit(0, o, true, 512, 512)).begin, base);
  EXPECT_EQ(h.at(h.free_blocks().best_fit(1, o, true, 512, 512)).begin, 2 * base);
  h.remove_segment(1);
  EXPECT_EQ(h.free_blocks().best_fit(1, o, true, 512, 512), no_block);
  EXPECT_TRUE(h.validate().ok());
}

TEST(heap, validate_sees_damage) {
  one_segment x;
  const block_index p = x.take(x.a, 512);
  x.take(x.a, 512);
  x.h.at(p).bytes += 512;
  EXPECT_EQ(x.h.validate().code(), errc::corrupt);
}

TEST(heap, names_the_owners_that_have_free_blocks) {
  one_segment x;
  const block_index p = x.take(x.a, 512);
  const block_index q = x.take(x.b, 512);
  EXPECT_TRUE(x.h.free_blocks().owners().empty()) << "idle memory has no owner";
  x.h.release(p, x.a, 1, false);
  x.h.release(q, x.b, 1, false);
  EXPECT_EQ(x.h.free_blocks().owners(), (std::vector{x.a, x.b}));
  x.h.make_idle(x.a, 1);
  EXPECT_EQ(x.h.free_blocks().owners(), (std::vector{x.b}));
  x.sound();
}

/// CPU seconds of this thread.
double cpu_seconds() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) * 1e-9;
}

// A walk over 100,000 free blocks takes 330 times as long as one over 300: ten times tell the two apart on any machine.
TEST(heap, absorbs_idle_memory_at_the_cost_of_what_has_changed) {
  const auto cost = [](std::uint64_t fragments) {
    one_segment x{fragments * 4 * 512};
    std::vector<block_index> all;
    for (std::uint64_t k = 0; k < 2 * fragments; ++k) all.push_back(x.take(x.a, 512));
    for (std::uint64_t k = 0; k < 2 * fragments; k += 2) x.h.release(all[k], x.a, 1, false);
    x.h.absorb_idle(x.a);
    const double begin = cpu_seconds();
    for (std::uint64_t k = 0; k < 50; ++k) {
      x.h.release(all[4 * k + 1], idle_owner, 0, false);
      EXPECT_TRUE(x.h.absorb_idle(x.a));
      for (int again = 0; again < 10; ++again) EXPECT_FALSE(x.h.absorb_idle(x.a));
    }
    const double seconds = cpu_seconds() - begin;
    x.sound();
    return seconds;
  };
  const auto least = [&](std::uint64_t fragments) {
    double seconds = cost(fragments);
    for (int k = 0; k < 4; ++k) seconds = std::min(seconds, cost(fragments));
    return seconds;
  };
  EXPECT_LT(least(100'000), 10 * least(300));
}

TEST(heap, metadata_stays_under_128_bytes_a_block) {
  one_segment x{std::uint64_t{200'000} * 512};
  for (int i = 0; i < 199'999; ++i) ASSERT_NE(x.take(x.a, 512), no_block);
  EXPECT_LE(x.h.metadata_bytes() / 200'000, 128U);
}

TEST(heap, random_use_keeps_every_invariant) {
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    std::mt19937_64 random{seed};
    one_segment x{4096 * 512};
    x.h.add_segment(base * 2, 2048 * 512, 0);
    std::vector<block_index> live;
    std::uint32_t epoch[3] = {0, 1, 1};
    for (int step = 0; step < 4'000; ++step) {
      const owner_id o = random() % 2 == 0 ? x.a : x.b;
      switch (random() % 8) {
        case 0:
          x.h.make_idle(o, epoch[o]++);
          break;
        case 1:
          x.h.absorb_idle(o);
          break;
        case 2:
          x.h.hand_over(o, epoch[o] - random() % 2, o == x.a ? x.b : x.a, epoch[o == x.a ? x.b : x.a],
                        random() % 2 == 0);
          break;
        case 3:
        case 4:
        case 5: {
          const block_index i = x.take(o, (random() % 64 + 1) * 512, std::uint64_t{512} << (random() % 4));
          if (i != no_block) live.push_back(i);
          break;
        }
        default:
          if (live.empty()) break;
          const std::size_t which = random() % live.size();
          x.h.release(live[which], o, epoch[o], random() % 2 == 0);
          live[which] = live.back();
          live.pop_back();
      }
      if (step % 64 == 0) {
        const status sound = x.h.validate();
        ASSERT_TRUE(sound.ok()) << sound.message() << ", seed " << seed << ", step " << step;
      }
    }
  }
}

}  // namespace
}  // namespace gpumem
