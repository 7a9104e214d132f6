/// Explores the schedules of small programs. README.md says how.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cstdlib>
#include <iostream>
#include <string>

#include "environment_number.hpp"
#include "explorer.hpp"
#include "gpumem/settings.hpp"

namespace gpumem::schedules {
namespace {

void report(explorer& all, const std::optional<finding>& found) {
  if (!found) return;
  std::cout << "found: " << found->to_string();
  const finding small = all.shrink(*found);
  ADD_FAILURE() << small.to_string() << "course:\n" << all.trace(small);
}

class Schedules : public ::testing::TestWithParam<topic> {};

TEST_P(Schedules, OfGeneratedProgramsKeepTheRules) {
  explorer all;
  const std::uint64_t seed = environment_number("SCHEDULE_SEED", 1);
  const std::uint64_t most = environment_number("SCHEDULES", 17'000);
  const auto begin = std::chrono::steady_clock::now();
  const std::uint64_t most_seconds = environment_number("SCHEDULE_SECONDS", 0);
  const auto keep_on = [&](std::uint64_t done) {
    const auto lasted = std::chrono::steady_clock::now() - begin;
    return most_seconds != 0 ? lasted < std::chrono::seconds{most_seconds} : done < most;
  };
  const auto found = all.explore(GetParam(), seed, keep_on);
  report(all, found);
  RecordProperty("points", std::to_string(all.points()));
  std::cout << all.points() << " points, " << all.turns() << " turns\n";
}

INSTANTIATE_TEST_SUITE_P(Each, Schedules,
                         ::testing::Values(topic::requests, topic::preloaded, topic::streams, topic::captures,
                                           topic::faults, topic::pools),
                         [](const auto& instance) { return std::string{to_string(instance.param)}; });

// --- faults that schedules have found --------------------------------------------------------------------------

using kind = operation::kind;

constexpr std::uint64_t schedules_of_a_case = 3000;

void expect_kept(scenario program, std::uint64_t schedules = schedules_of_a_case) {
  program.number();
  explorer all;
  const auto found = all.explore(program, environment_number("SCHEDULE_SEED", 1), schedules);
  report(all, found);
}

TEST(ScheduleOf, APreloadedFreeByAnotherThreadIsReused) {
  scenario program;
  program.setup.preloaded = true;
  program.setup.card_bytes = program.setup.limit_bytes = 256 * mib;
  program.threads = {{{.action = kind::allocate, .block = 0, .amount = 40 * mib},
                      {.action = kind::allocate, .block = 1, .amount = 40 * mib}},
                     {{.action = kind::allocate, .block = 2, .amount = 512},
                      {.action = kind::free, .block = 2},
                      {.action = kind::free, .block = 0}}};
  expect_kept(program);
}

TEST(ScheduleOf, APreloadedRequestWaitsForOneDeadline) {
  scenario program;
  program.setup.preloaded = true;
  program.setup.limit_bytes = 64 * mib;
  program.prelude = {{.action = kind::allocate, .block = 0, .amount = 40 * mib}, {.action = kind::free, .block = 0}};
  program.threads = {{{.action = kind::allocate, .block = 1, .amount = 40 * mib},
                      {.action = kind::free, .block = 1},
                      {.action = kind::allocate, .block = 2, .amount = 40 * mib}},
                     {{.action = kind::work, .block = 1, .stream = 1, .amount = 50 * millisecond}}};
  expect_kept(program);
}

TEST(ScheduleOf, ALinkedRequestWaitsForOneDeadline) {
  scenario program;
  program.prelude = {{.action = kind::allocate, .block = 0, .amount = 40 * mib}};
  program.threads = {{{.action = kind::work, .block = 0, .stream = 0, .amount = 50 * millisecond},
                      {.action = kind::free, .block = 0},
                      {.action = kind::allocate, .block = 2, .stream = 1, .amount = 48 * mib}}};
  expect_kept(program);
}

TEST(ScheduleOf, ARequestDuringATrimIsServed) {
  for (const char* const policy : {"growth", "caching"}) {
    SCOPED_TRACE(policy);
    scenario program;
    program.setup.policy = policy;
    program.prelude = {{.action = kind::allocate, .block = 0, .amount = 32 * mib},
                       {.action = kind::allocate, .block = 1, .amount = 32 * mib},
                       {.action = kind::free, .block = 0}};
    program.threads = {{{.action = kind::trim, .amount = UINT64_MAX}},
                       {{.action = kind::allocate, .block = 2, .amount = 2 * mib}}};
    expect_kept(program);
  }
}

TEST(ScheduleOf, ARequestThatGivesMemoryBackIsServedWhileAnotherGrows) {
  for (const char* const policy : {"growth", "caching"}) {
    SCOPED_TRACE(policy);
    scenario program;
    program.setup.policy = policy;
    program.prelude = {{.action = kind::allocate, .block = 0, .amount = 24 * mib},
                       {.action = kind::allocate, .block = 1, .amount = 24 * mib},
                       {.action = kind::free, .block = 0},
                       {.action = kind::free, .block = 1}};
    program.threads = {{{.action = kind::allocate, .block = 2, .amount = 38 * mib}},
                       {{.action = kind::allocate, .block = 3, .amount = 26 * mib}}};
    expect_kept(program);
  }
}

TEST(ScheduleOf, APagedRequestIsServedByPagesThatAnotherStreamFreed) {
  for (const char* const policy : {"expandable", "growth:backing=mapped"}) {
    for (const char* const reuse : {"poll", "device", "host"}) {
      SCOPED_TRACE(std::string{policy} + " " + reuse);
      scenario program;
      program.setup.policy = policy;
      program.setup.reuse = reuse;
      program.prelude = {{.action = kind::allocate, .block = 0, .stream = 1, .amount = 32 * mib},
                         {.action = kind::free, .block = 0},
                         {.action = kind::allocate, .block = 1, .stream = 1, .amount = 2 * mib}};
      program.threads = {{{.action = kind::allocate, .block = 2, .stream = 0, .amount = 34 * mib}},
                         {{.action = kind::allocate, .block = 3, .stream = 2, .amount = 4 * mib}}};
      expect_kept(program, 500);
    }
  }
}

TEST(ScheduleOf, ACaptureThatCannotBeginInEveryPoolBeginsInNone) {
  for (std::uint64_t n = 1; n <= 24; ++n) {
    SCOPED_TRACE(n);
    scenario program;
    program.setup.pools = 2;
    program.setup.card_bytes = 128 * mib;
    program.prelude = {{.action = kind::allocate, .block = 0, .pool = 0, .amount = 2 * mib},
                       {.action = kind::allocate, .block = 1, .pool = 1, .amount = 2 * mib}};
    program.threads = {{{.action = kind::host_fault, .amount = n}, {.action = kind::begin_capture, .stream = 0}},
                       {{.action = kind::allocate, .block = 2, .stream = 1, .pool = 1, .amount = mib}}};
    expect_kept(program, 50);
  }
}

TEST(ScheduleOf, ATrimEndsOnceTheWorkIsDone) {
  scenario program;
  program.setup.preloaded = true;
  program.setup.prelude_apart = false;
  program.setup.limit_bytes = 96 * mib;
  program.setup.card_bytes = 128 * mib;
  program.prelude = {{.action = kind::allocate, .block = 0, .amount = 24 * mib}};
  program.threads = {{{.action = kind::work, .block = 1, .amount = 200 * microsecond},
                      {.action = kind::free, .block = 0},
                      {.action = kind::trim, .amount = UINT64_MAX}},
                     {{.action = kind::allocate, .block = 2, .amount = 24 * mib}, {.action = kind::free, .block = 2}}};
  expect_kept(program);
}

TEST(ScheduleOf, ACaptureBeginsAfterTheRecordsOnItsStream) {
  scenario program;
  program.setup.limit_bytes = program.setup.card_bytes = 16 * mib;
  program.prelude = {{.action = kind::allocate, .block = 0, .stream = 1, .amount = 8 * mib}};
  program.threads = {
      {{.action = kind::free, .block = 0}, {.action = kind::allocate, .block = 1, .stream = 3, .amount = 10 * mib}},
      {{.action = kind::begin_capture, .stream = 1}}};
  expect_kept(program);
}

scenario with_full_queue(kind action) {
  scenario program;
  program.prelude = {{.action = kind::allocate, .block = 0, .stream = 0, .amount = 2 * mib},
                     {.action = kind::allocate, .block = 1, .stream = 2, .amount = 2 * mib},
                     {.action = kind::record_use, .block = 0, .stream = 1},
                     {.action = kind::fill_queue, .stream = 1, .amount = UINT64_MAX}};
  program.threads = {{{.action = kind::free, .block = 0}},
                     {{.action = action, .stream = 2}, {.action = kind::drain_queue, .stream = 1}}};
  return program;
}

// A request must record the fences of two streams in turn.
TEST(ScheduleOf, AStreamEndsBeforeTheRecordsOfOtherStreams) {
  scenario program;
  program.setup.thread_cache = false;
  program.prelude = {{.action = kind::allocate, .block = 0, .stream = 1, .amount = 2 * mib},
                     {.action = kind::allocate, .block = 1, .stream = 2, .amount = 4096},
                     {.action = kind::fill_queue, .stream = 1, .amount = 20 * millisecond}};
  program.threads = {{{.action = kind::free, .block = 0},
                      {.action = kind::free, .block = 1},
                      {.action = kind::allocate, .block = 2, .stream = 3, .amount = 64 * mib}},
                     {{.action = kind::end_stream, .stream = 2}}};
  expect_kept(program);
}

TEST(ScheduleOf, ARequestForPagesWaitsForOneDeadline) {
  for (const char* const policy : {"expandable", "growth:backing=mapped"}) {
    SCOPED_TRACE(policy);
    scenario program;
    program.setup.policy = policy;
    program.setup.reuse = "host";
    program.prelude = {{.action = kind::allocate, .block = 0, .stream = 1, .amount = 512},
                       {.action = kind::allocate, .block = 1, .stream = 1, .amount = 32 * mib},
                       {.action = kind::fill_queue, .stream = 1, .amount = 20 * millisecond},
                       {.action = kind::free, .block = 0}};
    program.threads = {{{.action = kind::allocate, .block = 2, .stream = 1, .amount = 32 * mib}},
                       {{.action = kind::allocate, .block = 3, .stream = 1, .amount = 16 * mib}}};
    expect_kept(program);
  }
}

TEST(ScheduleOf, TwoLimitsThatDoNotFitTogetherAreNotBothSet) {
  scenario program;
  program.setup.pools = 2;
  program.setup.card_bytes = 96 * mib;
  program.setup.limit_bytes = 32 * mib;
  program.threads = {{{.action = kind::set_limit, .pool = 0, .amount = 64 * mib}},
                     {{.action = kind::set_limit, .pool = 1, .amount = 64 * mib}}};
  expect_kept(program);
}

// The capture has already begun on the device, so another thread's free of a segment has already affected it.
TEST(ScheduleOf, ARequestThatNoticesItsCaptureWaitsForNoCallOfAnotherThread) {
  scenario program;
  program.setup.stream_ids = "query";
  program.setup.notices_captures = true;
  program.setup.card_bytes = program.setup.limit_bytes = 96 * mib;
  program.prelude = {{.action = kind::allocate, .block = 0, .stream = 1, .amount = 50 * mib},
                     {.action = kind::free, .block = 0}};
  program.threads = {{{.action = kind::work, .block = 2, .stream = 3, .amount = 50 * millisecond},
                      {.action = kind::begin_unnoticed_capture, .stream = 2},
                      {.action = kind::allocate, .block = 1, .stream = 2, .amount = mib}},
                     {{.action = kind::trim, .amount = 48 * mib}}};
  expect_kept(program);
}

// The announced capture waits for the trim, and the request for neither.
TEST(ScheduleOf, ARequestDoesNotWaitForACaptureThatBegins) {
  scenario program;
  program.setup.stream_ids = "query";
  program.setup.notices_captures = true;
  program.setup.card_bytes = program.setup.limit_bytes = 96 * mib;
  program.prelude = {{.action = kind::allocate, .block = 0, .stream = 1, .amount = 50 * mib},
                     {.action = kind::free, .block = 0}};
  program.threads = {{{.action = kind::trim, .amount = 48 * mib}},
                     {{.action = kind::work, .block = 2, .stream = 0, .amount = 50 * millisecond},
                      {.action = kind::begin_capture, .stream = 2}},
                     {{.action = kind::begin_unnoticed_capture, .stream = 3},
                      {.action = kind::allocate, .block = 1, .stream = 3, .amount = mib}}};
  expect_kept(program);
}

// The device reports captures, so a fence of the whole context is the last resort; the pages must move after it.
TEST(ScheduleOf, APagedRequestIsServedWhereCapturesMayBeUnknown) {
  for (const char* const reuse : {"poll", "device", "host"}) {
    SCOPED_TRACE(reuse);
    scenario program;
    program.setup.policy = "expandable";
    program.setup.stream_ids = "query";
    program.setup.reuse = reuse;
    program.setup.notices_captures = true;
    program.setup.limit_bytes = 32 * mib;
    program.prelude = {{.action = kind::allocate, .block = 0, .stream = 1, .amount = 8 * mib},
                       {.action = kind::allocate, .block = 1, .stream = 3, .amount = 2 * mib},
                       {.action = kind::free, .block = 1},
                       {.action = kind::allocate, .block = 2, .stream = 1, .amount = 8 * mib}};
    program.threads = {{{.action = kind::allocate, .block = 3, .stream = 2, .amount = 16 * mib}}};
    expect_kept(program, 20);
  }
}

TEST(ScheduleOf, AStreamEndsWhileAnotherOnesQueueIsFull) { expect_kept(with_full_queue(kind::end_stream)); }

TEST(ScheduleOf, ACaptureBeginsWhileAnotherStreamsQueueIsFull) { expect_kept(with_full_queue(kind::begin_capture)); }

}  // namespace
}  // namespace gpumem::schedules
