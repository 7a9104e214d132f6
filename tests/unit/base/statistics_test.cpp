#include "gpumem/statistics.hpp"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <set>
#include <utility>

#include "bits.hpp"

namespace gpumem {
namespace {

constexpr std::array causes{oom_cause::none,          oom_cause::limit,        oom_cause::device_full,
                            oom_cause::fragmentation, oom_cause::pending_work, oom_cause::driver_error};

oom_report example(oom_cause cause, std::string policy = "growth", std::string driver_message = "") {
  return {.cause = cause,
          .pool = "0",
          .policy = std::move(policy),
          .requested_bytes = 1288490188,
          .rounded_bytes = 1288490496,
          .device_total_bytes = 80 * gib,
          .device_free_bytes = 300 * mib,
          .driver_message = std::move(driver_message),
          .pool_statistics = {.reserved_bytes = 4 * gib,
                              .live_bytes = 3481 * mib,
                              .cached_bytes = 256 * mib,
                              .fenced_bytes = 128 * mib,
                              .idle_bytes = 128 * mib,
                              .limit_bytes = 4 * gib,
                              .largest_free_bytes = 96 * mib}};
}

TEST(OomReport, EveryCauseHasANameOfItsOwn) {
  std::set<std::string_view> names;
  for (const oom_cause cause : causes) EXPECT_TRUE(names.insert(to_string(cause)).second) << to_string(cause);
  EXPECT_EQ(names.count("unknown_cause"), 0U);
  EXPECT_EQ(to_string(oom_cause::none), "none");
  EXPECT_EQ(to_string(oom_cause::fragmentation), "fragmentation");
  EXPECT_EQ(to_string(oom_cause::driver_error), "driver_error");
  EXPECT_EQ(to_string(static_cast<oom_cause>(77)), "unknown_cause");
}

TEST(OomReport, HeadlineHasRequestCauseAndRemedy) {
  EXPECT_EQ(example(oom_cause::limit).headline(),
            "out of memory on pool 0 (growth): 1.20 GiB asked, limit 4.00 GiB reached with 3.40 GiB live and "
            "512.00 MiB free in pieces of at most 96.00 MiB; free memory");
  oom_report roomy = example(oom_cause::limit);
  roomy.device_free_bytes = roomy.rounded_bytes;
  EXPECT_TRUE(roomy.headline().ends_with("; free memory or raise GPUMEM_LIMIT")) << "the device has what was asked";
  EXPECT_EQ(
      example(oom_cause::device_full).headline(),
      "out of memory on pool 0 (growth): 1.20 GiB asked, device has 300.00 MiB left of 80.00 GiB, this pool holds "
      "3.40 GiB live and 512.00 MiB free in pieces of at most 96.00 MiB; free memory, or end what else uses the "
      "device");
  oom_report alone = example(oom_cause::device_full);
  alone.pool_statistics.reserved_bytes = alone.device_total_bytes - gib;
  EXPECT_TRUE(alone.headline().ends_with("; free memory")) << "nobody else holds enough";
  EXPECT_EQ(example(oom_cause::pending_work).headline(),
            "out of memory on pool 0 (growth): 1.20 GiB asked, a block that fits waits for work that cannot be waited "
            "for now (128.00 MiB fenced); end the stream capture or synchronise, then try again");
  EXPECT_EQ(
      example(oom_cause::fragmentation).headline(),
      "out of memory on pool 0 (growth): 1.20 GiB asked, enough is free, but not in one piece: 3.40 GiB live and "
      "512.00 MiB free in pieces of at most 96.00 MiB; free memory, set GPUMEM_POLICY=expandable, which joins free "
      "pages, or record the program with GPUMEM_TRACE: `gpumem why` says who held what, and tries every policy on the "
      "recording");
}

// Failures that neither a free nor the end of another program would cure.
TEST(OomReport, ARequestLargerThanTheLimitOrTheDeviceSaysSo) {
  oom_report report = example(oom_cause::limit);
  report.pool_statistics.limit_bytes = 2 * gib;
  report.pool_statistics.live_bytes = 0;
  report.requested_bytes = report.rounded_bytes = 3 * gib;
  EXPECT_EQ(report.headline(),
            "out of memory on pool 0 (growth): 3.00 GiB asked, more than the limit 2.00 GiB in all; ask for less");
  report.device_free_bytes = 4 * gib;
  EXPECT_TRUE(report.headline().ends_with("; ask for less or raise GPUMEM_LIMIT"));
  report.requested_bytes = report.rounded_bytes = 100 * gib;
  const std::string of_device =
      "out of memory on pool 0 (growth): 100.00 GiB asked, more than the device's 80.00 GiB in all; ask for less at "
      "once";
  EXPECT_EQ(report.headline(), of_device);
  report.cause = oom_cause::device_full;
  EXPECT_EQ(report.headline(), of_device);
}

TEST(OomReport, NamesTheGroupWhereItsLimitIsReached) {
  oom_report report = example(oom_cause::limit);
  report.group = "lab";
  report.group_limit_bytes = 8 * gib;
  report.group_held_bytes = 7 * gib;
  EXPECT_EQ(
      report.headline(),
      "out of memory on pool 0 (growth): 1.20 GiB asked, group lab holds 7.00 GiB of its 8.00 GiB, this pool 3.40 "
      "GiB live and 512.00 MiB free in pieces of at most 96.00 MiB; free memory, end a member or raise "
      "GPUMEM_GROUP_LIMIT");
  EXPECT_NE(report.to_string().find("\ngroup: lab\ngroup_limit_bytes: 8589934592\n"), std::string::npos);
  report.group_held_bytes = 5 * gib;
  EXPECT_EQ(report.headline(), example(oom_cause::limit).headline()) << "the pool's own limit it was";
}

TEST(OomReport, NamesThoseThatHoldTheMemory) {
  oom_report report = example(oom_cause::device_full);
  for (std::uint32_t i = 0; i < 40; ++i) report.holders.push_back({1000 + i, (40 - i) * gib, "python"});
  EXPECT_NE(report.headline().find(", pid 1000 (python) 40.00 GiB and 39 more; free memory"), std::string::npos)
      << report.headline();
  EXPECT_NE(report.to_string().find("\nholder: pid 1004 38654705664 python\nmore_holders: 35"), std::string::npos);
  report.holders = {{7, 0, ""}};
  EXPECT_NE(report.headline().find(", beside pid 7; free memory"), std::string::npos) << report.headline();
}

TEST(OomReport, NamesTheCommandThatFindsTheRemedy) {
  for (const oom_cause cause : causes) {
    const std::string text = example(cause).to_string();
    const bool helps = cause != oom_cause::none && cause != oom_cause::driver_error;
    EXPECT_EQ(text.find("\nto_do: gpumem why run.csv") != std::string::npos, helps) << text;
  }
}

TEST(OomReport, IsOfAtMostThirtyLines) {
  for (const oom_cause cause : causes) {
    oom_report report = example(cause, "growth", "refused");
    report.group = "lab";
    report.pending_on = "stream 0x5";
    for (std::uint32_t i = 0; i < 40; ++i) report.holders.push_back({1000 + i, gib, "python"});
    for (std::size_t i = 0; i < oom_report::most_events; ++i) {
      report.recent_events.push_back("-0.5 s event " + std::to_string(i));
    }
    const std::string text = report.to_string();
    EXPECT_LT(std::count(text.begin(), text.end(), '\n'), 29);
    EXPECT_TRUE(text.ends_with("\nevent: -0.5 s event 7")) << text;
  }
}

TEST(OomReport, EndsWithTheEventsBeforeTheRefusal) {
  oom_report report = example(oom_cause::limit);
  EXPECT_EQ(report.to_string().find("event:"), std::string::npos);
  report.recent_events = {"-1.250000 s segment_taken 2097152 reserved 4194304", "-0.000001 s bad\nline"};
  EXPECT_TRUE(
      report.to_string().ends_with("\nevent: -1.250000 s segment_taken 2097152 reserved 4194304\n"
                                   "event: -0.000001 s bad\\x0aline"))
      << report.to_string();
}

TEST(OomReport, NamesTheStreamThatPendingMemoryWaitsFor) {
  oom_report report = example(oom_cause::pending_work);
  report.pending_on = "stream 0x5";
  report.pending_bytes = 2 * gib;
  EXPECT_EQ(report.headline(),
            "out of memory on pool 0 (growth): 1.20 GiB asked, 2.00 GiB of what fits wait for stream 0x5; end a stream "
            "capture or synchronise, then try again");
}

TEST(OomReport, NamesAPolicyOnlyAgainstFragmentationThatItDoesNotHave) {
  for (const oom_cause cause : causes) {
    for (const char* policy : {"growth", "caching", "expandable", "expandable:slack=5%"}) {
      const bool helps = cause == oom_cause::fragmentation && !std::string_view{policy}.starts_with("expandable");
      const std::string headline = example(cause, policy).headline();
      EXPECT_EQ(headline.find("GPUMEM_POLICY=expandable") != std::string::npos, helps) << headline;
    }
  }
}

TEST(OomReport, SaysWhenNothingIsFree) {
  oom_report report = example(oom_cause::limit);
  report.pool_statistics.cached_bytes = 0;
  report.pool_statistics.fenced_bytes = 0;
  report.pool_statistics.idle_bytes = 0;
  EXPECT_NE(report.headline().find("3.40 GiB live and nothing free;"), std::string::npos) << report.headline();
}

TEST(OomReport, DriverMessageStaysOnItsLine) {
  const oom_report report = example(oom_cause::driver_error, "growth", "an illegal memory access\nwas encountered");
  const std::string headline = report.headline();
  EXPECT_EQ(headline.find('\n'), std::string::npos);
  EXPECT_NE(headline.find("an illegal memory access\\x0awas encountered"), std::string::npos) << headline;
  EXPECT_NE(report.to_string().find("\ndriver_message: an illegal memory access\\x0awas encountered"),
            std::string::npos);
}

TEST(OomReport, FiguresFollowOneALine) {
  for (const oom_cause cause : causes) {
    const oom_report report = example(cause);
    const std::string text = report.to_string();
    EXPECT_EQ(text.substr(0, text.find('\n')), report.headline());
    EXPECT_LE(std::count(text.begin(), text.end(), '\n'), 15);
    EXPECT_NE(text.back(), '\n');
    EXPECT_NE(text.find(fmt::format("\ncause: {}\n", to_string(cause))), std::string::npos) << text;
    EXPECT_NE(text.find("\nrequested_bytes: 1288490188\n"), std::string::npos) << text;
    EXPECT_NE(text.find("\nlargest_free_bytes: 100663296\n"), std::string::npos) << text;
  }
}

}  // namespace
}  // namespace gpumem
