/// Histories of handwritten logs: extremes are exact with few buckets, and maps show the contents of each cell.
#include "history.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "measure.hpp"
#include "test_files.hpp"

namespace gpumem::bench {
namespace {

constexpr std::uint64_t kib = 1024;

/// One operation after the other.
class written_log {
 public:
  written_log& then(memory_change what, address at, std::uint64_t bytes) {
    log_.op = ops_++;
    log_.add(what, at, bytes, bytes - 12);
    return *this;
  }
  [[nodiscard]] history made(const history_shape& shape) const { return make_history(log_, ops_, shape); }

 private:
  memory_log log_;
  std::uint64_t ops_ = 0;
};

TEST(history, keeps_a_peak_of_one_operation_among_very_many) {
  written_log log;
  log.then(memory_change::taken, 0, 1024 * kib);
  for (address i = 0; i < 50'000; ++i) {
    const address at = i % 100 * kib;
    log.then(memory_change::allocated, at, kib);
    if (i == 31'337)
      log.then(memory_change::allocated, 512 * kib, 77 * kib).then(memory_change::freed, 512 * kib, 77 * kib);
    log.then(memory_change::freed, at, kib);
  }
  const history got = log.made({.buckets = 10, .frames = 4, .cells = 16});
  const auto peak = std::max_element(got.points.begin(), got.points.end(),
                                     [](const auto& a, const auto& b) { return a.live_bytes < b.live_bytes; });
  EXPECT_EQ(peak->live_bytes, 78 * kib);
  EXPECT_EQ(peak->op, 1 + 2 * 31'337 + 1);
  EXPECT_LE(got.points.size(), 50U);
  EXPECT_EQ(got.points.front().op, 0U);
  EXPECT_EQ(got.points.back().op, got.ops - 1);
  EXPECT_TRUE(std::is_sorted(got.points.begin(), got.points.end(), [](auto& a, auto& b) { return a.op < b.op; }));
  EXPECT_THAT(got.frames, testing::Contains(testing::Field(&map_frame::op, peak->op))) << "the map of the peak";
}

TEST(history, a_map_has_live_and_free_cells_and_cells_with_nothing_behind) {
  const history got = written_log{}
                          .then(memory_change::taken, 64 * kib, 4 * kib)
                          .then(memory_change::allocated, 64 * kib, kib)
                          .then(memory_change::allocated, 67 * kib, kib)
                          .then(memory_change::taken, 128 * kib, 2 * kib)
                          .then(memory_change::allocated, 128 * kib, 2 * kib)
                          .then(memory_change::freed, 128 * kib, 2 * kib)
                          .then(memory_change::given_back, 128 * kib, 2 * kib)
                          .made({.buckets = 10, .frames = 7, .cells = 6});
  ASSERT_EQ(got.frames.size(), 7U);
  EXPECT_EQ(got.cell_bytes, 3 * kib / 2) << "a multiple of 512";
  EXPECT_THAT(got.piece_cells, testing::ElementsAre(3, 2));
  EXPECT_EQ(got.frames[0].cells, "aaa..");
  EXPECT_EQ(got.frames[1].cells, "faa..") << "two thirds of the first cell";
  EXPECT_EQ(got.frames[4].cells,
            "fai"
            "ii")
      << "the last cell of a piece is smaller";
  EXPECT_EQ(got.frames[6].cells, "fai..");
  EXPECT_EQ(got.frames[5].holes, 2U);
  EXPECT_EQ(got.frames[5].largest_hole_bytes, 2 * kib);
  EXPECT_DOUBLE_EQ(got.frames[5].external_fragmentation(), 0.5);
  EXPECT_EQ(got.frames[2].live_bytes, 2 * kib);
  EXPECT_EQ(got.frames[2].reserved_bytes, 4 * kib);
  EXPECT_DOUBLE_EQ(got.frames[2].internal_fragmentation(), 24.0 / 2048);
}

TEST(history, what_was_never_used_is_told_and_not_drawn) {
  const history got = written_log{}
                          .then(memory_change::taken, 0, 1024 * kib)
                          .then(memory_change::allocated, 0, 8 * kib)
                          .made({.buckets = 1, .frames = 2, .cells = 9});
  EXPECT_EQ(got.never_used_bytes, (1024 - 9) * kib);
  EXPECT_EQ(got.frames.back().largest_hole_bytes, 1016 * kib) << "but it counts";
}

TEST(history, mapped_neighbours_are_one_piece_and_segments_are_not) {
  for (const bool mapped : {false, true}) {
    const memory_change take = mapped ? memory_change::mapped : memory_change::taken;
    const history got = written_log{}
                            .then(take, 0, 4 * kib)
                            .then(take, 4 * kib, 4 * kib)
                            .then(memory_change::allocated, 0, kib)
                            .then(memory_change::given_back, 6 * kib, kib)
                            .made({.buckets = 4, .frames = 4, .cells = 8});
    EXPECT_EQ(got.frames[2].largest_hole_bytes, (mapped ? 7 : 4) * kib);
    EXPECT_EQ(got.frames[3].largest_hole_bytes, (mapped ? 5 : 3) * kib) << "a page in the middle went";
    EXPECT_EQ(got.frames[3].reserved_bytes, 7 * kib);
  }
}

TEST(history, runs_of_cells_are_written_short) {
  EXPECT_EQ(run_lengths(""), "");
  EXPECT_EQ(run_lengths("aaaaab.."), "a5b1.2");
}

TEST(history, of_a_replay_agrees_with_the_figures_of_the_row) {
  auto t = load_trace("bench/traces/serve.csv.gz");
  ASSERT_TRUE(t.ok()) << t.why().message();
  for (const char* text : {"growth", "caching", "growth,limit=80MiB", "multi_pool,pools=1GiB+1GiB"}) {
    const auto row = parse_policy_row(text, {}, "");
    ASSERT_TRUE(row.ok()) << row.why().message();
    const auto figures = measure_checked(*t, *row, {});
    const auto got = measure_history(*t, *row, {});
    ASSERT_TRUE(figures.ok() && got.ok() && *got);
    const auto most = [&](std::uint64_t history_point::*of) {
      std::uint64_t out = 0;
      for (const history_point& p : (*got)->points) out = std::max(out, p.*of);
      return out;
    };
    EXPECT_EQ(most(&history_point::live_bytes), figures->outcome.peak_live_bytes) << text;
    EXPECT_EQ(most(&history_point::reserved_bytes), figures->peak_reserved_bytes) << text;
    EXPECT_EQ((*got)->ops, figures->outcome.ops) << text;
  }
}

}  // namespace
}  // namespace gpumem::bench
