/// Steps on two streams that repeat: what a pool holds must not go on growing from one repetition to the next.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <random>
#include <vector>

#include "bits.hpp"
#include "row_figures.hpp"
#include "trace.hpp"

namespace gpumem::bench {
namespace {

struct stream_op {
  std::uint32_t slot;
  std::uint64_t bytes = 0;  ///< 0: frees the block
  std::uint16_t stream = 0;
};

/// A program whose second stream uses memory only briefly, as for messages to other ranks, and whose steps lie 100 ms
/// apart. Everything is free between two steps.
trace steps_on_two_streams(const std::vector<stream_op>& step, unsigned steps) {
  trace t;
  t.name = "two-streams";
  t.streams = {0, 1};
  for (const stream_op& op : step) t.slots = std::max(t.slots, op.slot + 1);
  std::vector<stream_op> last(t.slots);
  for (unsigned k = 0; k < steps; ++k) {
    for (const stream_op& op : step) {
      const bool frees = op.bytes == 0;
      if (!frees) last[op.slot] = op;
      t.ops.push_back({.time_ns = std::uint64_t{k} * 100'000'000,
                       .bytes = last[op.slot].bytes,
                       .slot = op.slot,
                       .stream = last[op.slot].stream,
                       .kind = frees ? op_kind::free : op_kind::allocate});
    }
  }
  return t;
}

TEST(TwoStreams, StepsDoNotTakeMoreForEver) {
  const std::vector<stream_op> small_steps{{0, 6 * mib},
                                           {1, 9 * mib},
                                           {2, 4096},
                                           {0},
                                           {3, 27 * mib, 1},
                                           {3},
                                           {4, 9 * mib},
                                           {5, mib},
                                           {6, 9 * mib},
                                           {7, 12 * mib},
                                           {7},
                                           {8, 12 * mib},
                                           {8},
                                           {9, 27 * mib + 16384, 1},
                                           {9},
                                           {10, 14 * mib, 1},
                                           {10},
                                           {6},
                                           {4},
                                           {5},
                                           {1},
                                           {2}};
  for (const char* row : {"expandable", "growth:backing=mapped"}) {
    const trace few = steps_on_two_streams(small_steps, 12);
    const trace many = steps_on_two_streams(small_steps, 48);
    EXPECT_EQ(figures_of(many, row).peak_reserved_bytes, figures_of(few, row).peak_reserved_bytes) << row;
  }
}

/// Steps of two phases, on one stream each, 100 ms apart: `each` repetitions of one phase before the other begins.
trace phases(unsigned seed, unsigned repetitions, unsigned each) {
  std::mt19937 random{seed};
  std::array<std::vector<std::uint64_t>, 2> sizes;
  for (auto& of_phase : sizes) {
    for (int k = 0; k < 40; ++k) of_phase.push_back(512 * (1 + random() % (1U << (8 + random() % 9))));
  }
  trace t;
  t.name = "phases";
  t.streams = {0, 1};
  t.slots = 40;
  std::uint64_t now_ns = 0;
  const auto add = [&](std::uint32_t slot, unsigned phase, op_kind kind) {
    now_ns += 20'000;
    t.ops.push_back({.time_ns = now_ns,
                     .bytes = sizes[phase][slot],
                     .slot = slot,
                     .stream = static_cast<std::uint16_t>(phase),
                     .kind = kind});
  };
  for (unsigned k = 0; k < repetitions; ++k) {
    const unsigned phase = k / each % 2;
    for (std::uint32_t slot = 0; slot < t.slots; ++slot) add(slot, phase, op_kind::allocate);
    for (std::uint32_t slot = 0; slot < t.slots; ++slot) add(slot, phase, op_kind::free);
    now_ns += 100'000'000;
  }
  return t;
}

TEST(TwoStreams, PhasesThatTakeTurnsShareMemory) {
  for (unsigned seed = 0; seed < 8; ++seed) {
    for (const unsigned each : {1U, 10U}) {
      const trace t = phases(seed, 30, each);
      const double used = figures_of(t, "expandable,stream_ids=notify").utilization();
      EXPECT_GT(used, .8) << "seed " << seed << ", " << each << " repetitions";
    }
  }
}

/// A random step: a quarter of the requests come from the second stream, and most of these are freed at once.
std::vector<stream_op> random_step(unsigned seed) {
  constexpr std::array<std::array<std::uint64_t, 5>, 3> sizes_mib{
      {{1, 6, 9, 14, 27}, {4, 17, 28, 64, 100}, {1, 2, 3, 20, 120}}};
  std::mt19937 random{seed};
  const auto below = [&random](std::uint64_t bound) { return static_cast<std::uint32_t>(random() % bound); };
  std::vector<stream_op> step;
  std::vector<std::uint32_t> live;
  std::uint32_t slots = 0;
  for (unsigned k = 8 + below(32); k != 0; --k) {
    if (!live.empty() && below(100) < 45) {
      std::swap(live[below(live.size())], live.back());
      step.push_back({live.back()});
      live.pop_back();
      continue;
    }
    const bool second = below(4) == 0;
    const std::uint64_t odd_bytes = std::array<std::uint64_t, 4>{0, 0, 512, 65536}[below(4)];
    step.push_back({slots, sizes_mib[seed % 3][below(5)] * mib + odd_bytes, static_cast<std::uint16_t>(second)});
    if (second && below(5) != 0) {
      step.push_back({slots});
    } else {
      live.push_back(slots);
    }
    ++slots;
  }
  for (const std::uint32_t slot : live) step.push_back({slot});
  return step;
}

// A pool that moved pages holds less than one that never moves any, and approaches its memory page by page once pages
// stop moving.
TEST(TwoStreams, RandomStepsDoNotTakeMoreForEver) {
  for (unsigned seed = 0; seed < 200; ++seed) {
    const std::vector<stream_op> step = random_step(seed);
    const trace few = steps_on_two_streams(step, 12);
    const trace many = steps_on_two_streams(step, 36);
    std::uint64_t without_moves = 0;
    for (const char* row : {"growth:backing=mapped", "expandable:slack=100%"}) {
      without_moves = figures_of(few, row).peak_reserved_bytes;
      EXPECT_EQ(figures_of(many, row).peak_reserved_bytes, without_moves) << row << ", seed " << seed;
    }
    const compare_figures early = figures_of(few, "expandable");
    const compare_figures late = figures_of(many, "expandable");
    EXPECT_LE(late.peak_reserved_bytes, std::max(early.peak_reserved_bytes, without_moves)) << "seed " << seed;
    EXPECT_EQ(late.pages->remapped, early.pages->remapped) << "seed " << seed;
  }
}

// Each pass would place its blocks a little differently, beside the pages that the pass before made, and lack some
// again.
TEST(TwoStreams, RandomStepsSoonTakeTheSamePlaces) {
  for (unsigned seed = 0; seed < 200; ++seed) {
    std::vector<stream_op> step;
    for (unsigned part = 0; part < 8; ++part) {
      const auto first_slot = static_cast<std::uint32_t>(1000 * part);
      for (stream_op op : random_step(8 * seed + part)) {
        op.slot += first_slot;
        step.push_back(op);
      }
    }
    const std::uint64_t early = figures_of(steps_on_two_streams(step, 6), "expandable").peak_reserved_bytes;
    EXPECT_EQ(figures_of(steps_on_two_streams(step, 12), "expandable").peak_reserved_bytes, early) << "seed " << seed;
  }
}

/// A random step whose blocks a second stream uses, a tenth of them, before they are freed; 100 us lie between two
/// operations, and work ends 1 ms after its submission.
trace steps_with_uses(unsigned seed, unsigned steps) {
  std::vector<stream_op> step = random_step(seed);
  for (stream_op& op : step) op.stream = 0;
  trace t = steps_on_two_streams(step, steps);
  std::uint64_t n = 0;
  for (trace_op& op : t.ops) {
    const std::uint64_t in_step = n++ % step.size();
    op.time_ns += in_step * 100'000;
    if (op.kind == op_kind::free && (in_step + seed) % 10 == 0) op.stream = 1;
  }
  return t;
}

// A step may look different to the pool in each repetition, because fences come in batches of frees: what it holds is
// final only after a few hundred.
TEST(TwoStreams, BlocksThatTheOtherStreamUsesDoNotTakeMoreForEver) {
  for (unsigned seed = 0; seed < 100; ++seed) {
    const trace few = steps_with_uses(seed, 400);
    const trace many = steps_with_uses(seed, 1200);
    for (const char* row : {"growth", "caching", "expandable"}) {
      EXPECT_EQ(figures_of(many, row).peak_reserved_bytes, figures_of(few, row).peak_reserved_bytes)
          << row << ", seed " << seed;
    }
  }
}

// Where streams go on taking idle memory before their own, `caching` holds 3,682 MiB after 400 repetitions of step 269,
// instead of 510. So would `growth`, since it keeps the segments of a step that repeats.
TEST(TwoStreams, RandomStepsDoNotTakeMoreSegmentsForEver) {
  for (unsigned seed = 200; seed < 400; ++seed) {
    const std::vector<stream_op> step = random_step(seed);
    const trace few = steps_on_two_streams(step, 12);
    const trace many = steps_on_two_streams(step, 400);
    const trace more = steps_on_two_streams(step, 1200);
    for (const char* row : {"growth", "caching"}) {
      const std::uint64_t late = figures_of(many, row).peak_reserved_bytes;
      EXPECT_LE(late, figures_of(few, row).peak_reserved_bytes * 2) << row << ", seed " << seed;
      EXPECT_EQ(figures_of(more, row).peak_reserved_bytes, late) << row << ", seed " << seed;
    }
  }
}

}  // namespace
}  // namespace gpumem::bench
