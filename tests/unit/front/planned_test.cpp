// The policy `planned` with a plan: every block at its place, departures in other segments, and invalid plans.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <map>
#include <random>

#include "bits.hpp"
#include "gpumem/allocator.hpp"
#include "gpumem/sim_device.hpp"
#include "log.hpp"
#include "plan_file.hpp"
#include "plan_recorder.hpp"

namespace gpumem {
namespace {

using plan::recorded_op;
using ::testing::HasSubstr;

/// A recording, and its replay against an allocator over the simulated device with its referee.
class planned : public ::testing::Test {
 protected:
  void SetUp() override {
    path_ = ::testing::TempDir() + "gpumem_planned_" + ::testing::UnitTest::GetInstance()->current_test_info()->name() +
            ".plan";
    std::replace(path_.begin() + static_cast<std::ptrdiff_t>(::testing::TempDir().size()), path_.end(), '/', '_');
  }
  void TearDown() override {
    if (a_ != nullptr) {
      const status ok = a_->check(0);
      EXPECT_TRUE(ok) << ok.message();
    }
    EXPECT_EQ(device_.hazard_count(), 0U);
    a_.reset();
    std::filesystem::remove(path_);
  }

  status write_plan_of(const std::vector<recorded_op>& ops) {
    const auto made = plan::make_plan(ops, {.time_limit = std::chrono::seconds{5}, .tolerance = 0.1}, nullptr, reuse_);
    if (!made) return made.why();
    plan_ = *made;
    return plan::write_plan(path_, plan_);
  }
  status open(const std::string& limit = "", const std::string& policy = "planned") {
    settings s;
    s.policy = policy;
    s.plan_path = path_;
    s.reuse = reuse_;
    if (!limit.empty()) {
      if (status ok = s.set("limit", limit); !ok) return ok;
    }
    device* const devices[] = {&device_};
    auto opened = allocator::open(devices, s);
    if (!opened) return opened.why();
    a_ = *std::move(opened);
    return {};
  }
  void allocate(std::uint32_t block, std::uint64_t bytes, std::uint16_t stream = 0) {
    while (streams_.size() <= stream) streams_.push_back(device_.create_stream());
    void* const p = a_->allocate(bytes, streams_[stream]);
    device_.handed_out(reinterpret_cast<address>(p), bytes, streams_[stream]);
    device_.enqueue_use(streams_[stream], lag_ns_, reinterpret_cast<address>(p), bytes);
    blocks_[block] = p;
  }
  void give(std::uint32_t block) {
    device_.given_back(reinterpret_cast<address>(blocks_[block]));
    const status ok = a_->try_deallocate(blocks_[block]);
    EXPECT_TRUE(ok) << ok.message();
    blocks_.erase(block);
  }
  void play(const std::vector<recorded_op>& ops) {
    for (const recorded_op& op : ops) {
      if (op.free) {
        give(op.block);
      } else {
        allocate(op.block, op.bytes, op.stream);
      }
    }
  }
  [[nodiscard]] statistics stats() const { return *a_->stats(0); }

  sim_device device_;
  stream_reuse reuse_ = stream_reuse::device;  // streams share places, and wait for each other
  std::uint64_t lag_ns_ = 1000;
  std::string path_;
  plan::step_plan plan_;
  std::unique_ptr<allocator> a_;
  std::vector<stream_ref> streams_;
  std::map<std::uint32_t, void*> blocks_;
};

/// Random sizes and lifetimes on `streams` streams; everything is freed at the end.
std::vector<recorded_op> step(std::uint64_t seed, std::uint16_t streams = 1) {
  std::mt19937_64 random{seed};
  std::vector<recorded_op> ops;
  std::vector<std::uint32_t> live;
  for (std::uint32_t block = 0; block < 400; ++block) {
    ops.push_back(
        {.bytes = 1 + random() % (4 * mib), .block = block, .stream = static_cast<std::uint16_t>(random() % streams)});
    live.push_back(block);
    while (!live.empty() && (live.size() > 40 || random() % 3 == 0)) {
      std::swap(live[random() % live.size()], live.back());
      ops.push_back({.block = live.back(), .free = true});
      live.pop_back();
    }
  }
  for (const std::uint32_t block : live) ops.push_back({.block = block, .free = true});
  return ops;
}

TEST_F(planned, places_every_block_and_takes_nothing_but_the_plan) {
  const std::vector<recorded_op> ops = step(1);
  ASSERT_TRUE(write_plan_of(ops));
  ASSERT_TRUE(open());
  for (int k = 0; k < 5; ++k) play(ops);
  EXPECT_EQ(stats().plan_placements, 2000U);
  EXPECT_EQ(stats().plan_departures, 0U);
  EXPECT_EQ(stats().grown_segments, 1U);
  EXPECT_EQ(stats().peak_reserved_bytes, round_up(plan_.height_bytes, 2 * mib));
}

TEST_F(planned, puts_each_block_where_the_plan_says) {
  const std::vector<recorded_op> ops = step(2);
  ASSERT_TRUE(write_plan_of(ops));
  ASSERT_TRUE(open());
  address base = 0;
  std::size_t k = 0;
  for (const recorded_op& op : ops) {
    play({op});
    if (op.free) continue;
    const auto at = reinterpret_cast<address>(blocks_.at(op.block));
    if (k == 0) base = at - plan_.allocations[0].offset;
    ASSERT_EQ(at, base + plan_.allocations[k++].offset);
  }
}

TEST_F(planned, shares_places_between_streams_only_in_order) {
  const std::vector<recorded_op> ops = step(3, 4);
  ASSERT_TRUE(write_plan_of(ops));
  ASSERT_TRUE(open());
  for (int k = 0; k < 3; ++k) play(ops);
  EXPECT_EQ(stats().plan_departures, 0U);
  EXPECT_GT(stats().device_waits, 0U);
  EXPECT_EQ(stats().grown_segments, 1U);
}

TEST_F(planned, keeps_streams_apart_under_poll_and_asks_for_nothing) {
  std::vector<recorded_op> ops = step(3);
  for (recorded_op& op : ops) {
    if (op.free || op.block % 4 != 0) continue;
    op.stream = 1;
    op.bytes = 1 + op.bytes / 64;
  }
  reuse_ = stream_reuse::poll;
  lag_ns_ = 1'000'000'000;
  ASSERT_TRUE(write_plan_of(ops));
  ASSERT_TRUE(open());
  for (int k = 0; k < 3; ++k) play(ops);
  EXPECT_EQ(stats().plan_departures, 0U);
  EXPECT_EQ(stats().grown_segments, 1U);
  EXPECT_EQ(stats().host_waits, 0U);
  EXPECT_EQ(stats().device_waits, 0U);
}

/// Stream 1 gets a place that stream 0 freed a request before.
class planned_turns : public planned, public ::testing::WithParamInterface<stream_reuse> {
 protected:
  /// Departures from the plan in a step with this time between the free and the other stream's request.
  std::uint64_t departures_after(std::uint64_t between_ns) {
    reuse_ = GetParam();
    lag_ns_ = 1'000'000;
    const std::vector<recorded_op> ops{{.bytes = 4 * mib, .block = 0}, {.block = 0, .free = true},
                                       {.bytes = 512, .block = 1},     {.bytes = 4 * mib, .block = 2, .stream = 1},
                                       {.block = 1, .free = true},     {.block = 2, .free = true}};
    EXPECT_TRUE(write_plan_of(ops));
    EXPECT_EQ(plan_.height_bytes, 4 * mib + 512);
    EXPECT_TRUE(open());
    play({ops[0], ops[1], ops[2]});
    device_.advance_by(between_ns);
    play({ops[3], ops[4], ops[5]});
    return stats().plan_departures;
  }
};

TEST_P(planned_turns, gives_a_place_to_another_stream_when_the_work_there_is_done) {
  EXPECT_EQ(departures_after(2'000'000), 0U);
}

TEST_P(planned_turns, gives_no_place_to_another_stream_before_unless_one_waits) {
  EXPECT_EQ(departures_after(0) == 0, GetParam() != stream_reuse::poll);
}

INSTANTIATE_TEST_SUITE_P(reuse, planned_turns,
                         ::testing::Values(stream_reuse::poll, stream_reuse::device, stream_reuse::host));

TEST_F(planned, serves_what_departs_beside_the_plan_and_counts_it) {
  const std::vector<recorded_op> ops = step(4);
  ASSERT_TRUE(write_plan_of(ops));
  ASSERT_TRUE(open());
  std::vector<recorded_op> other = ops;
  other.insert(other.begin() + 100, {.bytes = 777'777, .block = 9000});
  other.push_back({.block = 9000, .free = true});
  play(ops);
  play(other);
  play(ops);
  EXPECT_EQ(stats().plan_departures, 1U);
  EXPECT_EQ(stats().plan_placements, 1200U);
  EXPECT_EQ(stats().segments, 2U);
}

TEST_F(planned, serves_a_program_that_the_plan_does_not_know) {
  ASSERT_TRUE(write_plan_of(step(5)));
  ASSERT_TRUE(open());
  play(step(6));
  EXPECT_GT(stats().plan_departures, 300U);
  play(step(5));
  EXPECT_GT(stats().plan_placements, 350U) << "it is found again";
}

TEST_F(planned, says_once_that_the_plan_is_of_another_program) {
  std::vector<std::string> lines;
  const log_sink before = set_log_sink([&](std::string_view line) { lines.emplace_back(line); });
  ASSERT_TRUE(write_plan_of(step(5)));
  ASSERT_TRUE(open());
  play(step(6));
  (void)set_log_sink(before);
  EXPECT_THAT(lines, ::testing::ElementsAre("pool 0: of the first 64 requests the plan has none: it is of another "
                                            "program; growth serves instead"));
}

TEST_F(planned, record_writes_the_plan_of_what_was_served) {
  std::vector<recorded_op> ops;  // a step three times, blocks in pairs, streams in turn
  for (std::uint32_t k = 0; k < 90; ++k) {
    ops.push_back({.bytes = (k % 30 + 1) * 64 * kib, .block = k, .stream = static_cast<std::uint16_t>(k % 3)});
    if (k % 2 == 0) continue;
    ops.push_back({.block = k - 1, .free = true});
    ops.push_back({.block = k, .free = true});
  }
  std::vector<std::string> lines;
  const log_sink before = set_log_sink([&](std::string_view line) { lines.emplace_back(line); });
  ASSERT_TRUE(open("", "planned:record"));
  EXPECT_EQ(a_->devices().front().policy, "planned:record");
  play(ops);
  EXPECT_FALSE(std::filesystem::exists(path_)) << "before it ends";
  a_.reset();
  (void)set_log_sink(before);
  ASSERT_EQ(lines.size(), 1U);
  EXPECT_THAT(lines.front(), HasSubstr("planned:record: 60 allocations placed in "))
      << "one step, and what came before";
  const auto written = plan::read_plan(path_);
  ASSERT_TRUE(written) << written.why().message();
  EXPECT_TRUE(plan::is_plan_of(*written, ops));
  ASSERT_TRUE(open());
  play(ops);
  EXPECT_EQ(stats().plan_departures, 0U);
  EXPECT_EQ(stats().plan_placements, 90U);
}

TEST_F(planned, record_ends_when_it_is_full) {
  std::vector<std::string> lines;
  const log_sink before = set_log_sink([&](std::string_view line) { lines.emplace_back(line); });
  auto recorder = plan_recorder::open(path_, plan_recorder::writes::always, 3);
  ASSERT_TRUE(recorder.ok());
  for (const address at : {1U, 2U, 3U, 4U}) (*recorder)->allocated(at * gib, at * mib, {});
  (*recorder)->freed(gib, mib, {});
  EXPECT_TRUE((*recorder)->finish({}));
  EXPECT_TRUE((*recorder)->finish({})) << "nothing more";
  (void)set_log_sink(before);
  ASSERT_EQ(lines.size(), 2U);
  EXPECT_EQ(lines.front(), "planned:record: recording ends after 3 operations; the plan is of these");
  EXPECT_EQ(plan::read_plan(path_)->allocations.size(), 3U);
}

TEST_F(planned, each_pool_has_the_plan_that_was_recorded_of_it) {
  settings with;
  ASSERT_TRUE(with.set("pools", "1GiB,1GiB").ok());
  with.plan_path = path_;
  device* const devices[] = {&device_};
  const log_sink before = set_log_sink([](std::string_view) {});
  for (const char* policy : {"planned:record", "planned"}) {
    with.policy = policy;
    const auto both = allocator::open(devices, with);
    ASSERT_TRUE(both.ok()) << both.why().message();
    for (const int pool : {0, 1}) {
      for (int k = 1; k <= 5; ++k) {
        const request wants{.bytes = static_cast<std::uint64_t>(k) * (pool == 0 ? 3 : 5) * mib, .device = pool};
        (*both)->deallocate(*(*both)->try_allocate(wants));
      }
      EXPECT_EQ((*both)->stats(pool)->plan_placements, with.policy == "planned" ? 5U : 0U);
      EXPECT_EQ((*both)->stats(pool)->plan_departures, 0U) << pool;
    }
  }
  (void)set_log_sink(before);
  const std::string other = path_.substr(0, path_.size() - 5) + ".1.plan";
  EXPECT_TRUE(std::filesystem::remove(other)) << other;
}

TEST_F(planned, record_refuses_a_place_that_cannot_be_written) {
  path_ = "/nowhere/run.plan";
  const status refused = open("", "planned:record");
  EXPECT_EQ(refused.code(), errc::bad_setting);
  EXPECT_EQ(
      refused.message(),
      "GPUMEM_PLAN=/nowhere/run.plan: cannot be written: No such file or directory; expected a path in a writable "
      "folder");
}

TEST_F(planned, record_without_an_allocation_writes_nothing) {
  ASSERT_TRUE(open("", "planned:record"));
  a_.reset();
  EXPECT_FALSE(std::filesystem::exists(path_));
}

/// Runs from the first request to the end; returns the logged lines.
class planned_renew : public planned {
 protected:
  std::vector<std::string> run(const std::vector<recorded_op>& ops, const std::string& limit = "") {
    std::vector<std::string> lines;
    const log_sink before = set_log_sink([&](std::string_view line) { lines.emplace_back(line); });
    const status opened = open(limit, "planned:renew");
    EXPECT_TRUE(opened) << opened.message();
    play(ops);
    placements_ = stats().plan_placements;
    departures_ = stats().plan_departures;
    a_.reset();
    (void)set_log_sink(before);
    return lines;
  }
  [[nodiscard]] std::string text_of_plan() const {
    const auto read = plan::read_plan(path_);
    return read ? plan::plan_text(*read) : read.why().message();
  }
  /// 400 blocks in pairs, no two steps alike: placed at once, so that the test does not wait for a better plan.
  static std::vector<recorded_op> pairs(std::uint64_t unit_bytes) {
    std::vector<recorded_op> ops;
    for (std::uint32_t k = 0; k < 400; ++k) {
      ops.push_back({.bytes = (k * k * 37 % 1009 + 1) * unit_bytes, .block = k});
      if (k % 2 == 0) continue;
      ops.push_back({.block = k - 1, .free = true});
      ops.push_back({.block = k, .free = true});
    }
    return ops;
  }
  /// Adds blocks of sizes that are in no plan.
  static std::vector<recorded_op> with_strangers(std::vector<recorded_op> ops, std::uint32_t strangers) {
    for (std::uint32_t k = 0; k < strangers; ++k) {
      ops.insert(ops.begin() + 100 + 20 * k, {.bytes = 10 * mib + k, .block = 9000 + k});
      ops.push_back({.block = 9000 + k, .free = true});
    }
    return ops;
  }

  std::uint64_t placements_ = 0;
  std::uint64_t departures_ = 0;
};

TEST_F(planned_renew, records_a_first_run_and_follows_it_from_then_on) {
  const std::vector<recorded_op> ops = pairs(kib);
  EXPECT_THAT(run(ops), ::testing::ElementsAre(HasSubstr("planned:renew: 400 allocations placed in ")));
  EXPECT_EQ(placements_ + departures_, 0U);
  const std::string plan = text_of_plan();
  const auto written = std::filesystem::last_write_time(path_);
  EXPECT_THAT(run(ops), ::testing::IsEmpty());
  EXPECT_EQ(placements_, 400U);
  EXPECT_EQ(departures_, 0U);
  EXPECT_EQ(text_of_plan(), plan);
  EXPECT_EQ(std::filesystem::last_write_time(path_), written) << "not even written again";
}

TEST_F(planned_renew, leaves_a_plan_that_is_followed_closely) {
  const std::vector<recorded_op> ops = pairs(kib);
  ASSERT_TRUE(write_plan_of(ops));
  const std::string plan = text_of_plan();
  EXPECT_THAT(run(with_strangers(ops, 4)), ::testing::IsEmpty());
  EXPECT_EQ(departures_, 4U) << "of 404: less than one in a hundred";
  EXPECT_EQ(text_of_plan(), plan);
}

TEST_F(planned_renew, makes_a_plan_anew_that_is_not) {
  const std::vector<recorded_op> before = pairs(kib);
  ASSERT_TRUE(write_plan_of(before));
  const std::vector<recorded_op> now = with_strangers(before, 5);
  EXPECT_THAT(run(now),
              ::testing::ElementsAre("planned:renew: 5 of 405 requests departed from the plan, which is made anew",
                                     HasSubstr("planned:renew: 405 allocations placed in ")));
  EXPECT_THAT(run(now), ::testing::IsEmpty());
  EXPECT_EQ(placements_, 405U);
  EXPECT_EQ(departures_, 0U);
}

TEST_F(planned_renew, makes_a_plan_anew_that_is_of_another_program) {
  ASSERT_TRUE(write_plan_of(pairs(kib)));
  const std::vector<recorded_op> other = pairs(3 * kib);
  EXPECT_THAT(run(other), ::testing::SizeIs(3));  // a warning, the number of departures, and the new plan
  const auto made = plan::read_plan(path_);
  ASSERT_TRUE(made) << made.why().message();
  EXPECT_TRUE(plan::is_plan_of(*made, other));
  EXPECT_THAT(run(other), ::testing::IsEmpty());
  EXPECT_EQ(departures_, 0U);
}

// Every request departs, but no other plan would be better.
TEST_F(planned_renew, leaves_a_plan_that_finds_no_memory) {
  const std::vector<recorded_op> ops = pairs(kib);
  ASSERT_TRUE(write_plan_of(ops));
  plan_.height_bytes = 64 * mib;
  ASSERT_TRUE(plan::write_plan(path_, plan_));
  const std::string plan = text_of_plan();
  EXPECT_THAT(run(ops, "32MiB"),
              ::testing::ElementsAre(HasSubstr("got 0 B of 64.00 MiB"),
                                     "planned:renew: 400 of 400 requests departed from the plan, which stays, since it "
                                     "is of these requests"));
  EXPECT_EQ(text_of_plan(), plan);
}

TEST_F(planned_renew, writes_where_it_was_opened_though_the_program_goes_elsewhere) {
  const std::string there = path_;
  const std::filesystem::path before = std::filesystem::current_path();
  std::filesystem::current_path(std::filesystem::path{path_}.parent_path());
  path_ = std::filesystem::path{path_}.filename();
  const log_sink sink = set_log_sink([](std::string_view) {});
  ASSERT_TRUE(open("", "planned:renew"));
  std::filesystem::current_path("/");
  play(pairs(kib));
  a_.reset();
  (void)set_log_sink(sink);
  std::filesystem::current_path(before);
  path_ = there;
  EXPECT_TRUE(std::filesystem::exists(path_)) << path_;
}

TEST_F(planned_renew, refuses_a_file_that_is_no_plan_and_leaves_it) {
  const std::string not_a_plan = "weights";
  std::ofstream{path_} << not_a_plan;
  const status refused = open("", "planned:renew");
  EXPECT_EQ(refused.code(), errc::bad_setting);
  EXPECT_THAT(refused.message(), HasSubstr("GPUMEM_PLAN=" + path_));
  std::string found;
  std::getline(std::ifstream{path_}, found);
  EXPECT_EQ(found, not_a_plan);
}

TEST_F(planned_renew, refuses_a_place_that_cannot_be_written) {
  path_ = "/nowhere/run.plan";
  EXPECT_EQ(
      open("", "planned:renew").message(),
      "GPUMEM_PLAN=/nowhere/run.plan: cannot be written: No such file or directory; expected a path in a writable "
      "folder");
}

// The first pool's plan, which `planned` follows in pools without one, does not apply to the second.
TEST_F(planned_renew, each_pool_has_a_plan_of_its_own) {
  ASSERT_TRUE(write_plan_of(pairs(kib)));
  const std::string first = text_of_plan();
  const std::string second = path_.substr(0, path_.size() - 5) + ".1.plan";
  settings with;
  ASSERT_TRUE(with.set("pools", "train:1GiB,eval:1GiB:planned:renew").ok());
  with.plan_path = path_;
  device* const devices[] = {&device_};
  const log_sink before = set_log_sink([](std::string_view) {});
  for (const std::uint64_t placed : {0U, 1U}) {
    const auto both = allocator::open(devices, with);
    ASSERT_TRUE(both.ok()) << both.why().message();
    (*both)->deallocate(*(*both)->try_allocate({.bytes = 3 * mib, .device = 1}));
    EXPECT_EQ((*both)->stats(1)->plan_placements, placed);
    EXPECT_EQ((*both)->stats(1)->plan_departures, 0U);
  }
  (void)set_log_sink(before);
  EXPECT_EQ(text_of_plan(), first);
  EXPECT_TRUE(std::filesystem::remove(second)) << second;
}

TEST_F(planned, falls_back_where_a_planned_place_is_still_held) {
  ASSERT_TRUE(write_plan_of({{.bytes = mib, .block = 0},
                             {.block = 0, .free = true},
                             {.bytes = 2 * mib, .block = 1},
                             {.block = 1, .free = true}}));
  ASSERT_TRUE(open());
  allocate(0, mib);
  allocate(1, 2 * mib);
  EXPECT_EQ(stats().plan_placements, 1U);
  EXPECT_EQ(stats().plan_departures, 1U);
  give(0);
  give(1);
}

TEST_F(planned, uses_the_plans_own_memory_before_it_fails) {
  ASSERT_TRUE(write_plan_of({{.bytes = 8 * mib, .block = 0}, {.bytes = 8 * mib, .block = 1}}));
  ASSERT_TRUE(open("16MiB"));
  allocate(0, mib);
  allocate(1, 3 * mib);
  EXPECT_EQ(stats().plan_departures, 2U);
  EXPECT_EQ(stats().reserved_bytes, 16 * mib);
  give(0);
  give(1);
}

TEST_F(planned, works_without_the_plans_memory_where_the_limit_is_too_low_for_it) {
  ASSERT_TRUE(write_plan_of({{.bytes = 64 * mib, .block = 0}, {.bytes = mib, .block = 1}}));
  ASSERT_TRUE(open("32MiB"));
  allocate(1, mib);
  EXPECT_EQ(stats().plan_placements, 0U);
  EXPECT_LE(stats().reserved_bytes, 32 * mib);
  give(1);
}

TEST_F(planned, refuses_a_plan_that_is_none) {
  const status absent = open();
  EXPECT_EQ(absent.code(), errc::bad_setting);
  EXPECT_EQ(absent.message(),
            "GPUMEM_PLAN=" + path_ + ": No such file or directory; expected a plan of `gpumem plan` or planned:renew");
  ASSERT_TRUE(write_plan_of(step(7)));
  std::filesystem::resize_file(path_, std::filesystem::file_size(path_) / 2);
  EXPECT_THAT(open().message(), HasSubstr("damaged plan: it ends before its checksum"));
}

}  // namespace
}  // namespace gpumem
