// The front's own checks: form of requests, several devices, misuse across pools, verbosity. tests/conformance has the
// contract that all policies share.
#include "gpumem/allocator.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <thread>
#include <vector>

#include "bits.hpp"
#include "gpumem/sim_device.hpp"
#include "log.hpp"

namespace gpumem {
namespace {

using ::testing::Contains;
using ::testing::HasSubstr;

struct two_devices {
  sim_device first{numbered(0)};
  sim_device second{numbered(1)};
  std::unique_ptr<allocator> a;

  explicit two_devices(settings s = {}) {
    device* const devices[] = {&first, &second};
    auto opened = allocator::open(devices, s);
    EXPECT_TRUE(opened.ok()) << opened.why().message();
    a = *std::move(opened);
  }
  static sim_config numbered(int ordinal) {
    sim_config c;
    c.ordinal = ordinal;
    c.first_address += static_cast<address>(ordinal) << 44;  // as with drivers, no address occurs twice
    return c;
  }
};

settings grabbing(std::string_view limit = "1GiB") {
  settings s;
  EXPECT_TRUE(s.set("policy", "grab_all").ok() && s.set("limit", limit).ok());
  return s;
}

TEST(allocator, first_use_under_grab_all_takes_every_device) {
  two_devices x{grabbing()};
  EXPECT_EQ(x.first.used_bytes() + x.second.used_bytes(), 0U);
  x.a->deallocate(x.a->allocate(1000, {}, 1));
  EXPECT_EQ(x.first.used_bytes(), gib);
  EXPECT_EQ(x.second.used_bytes(), gib);
  x.a->deallocate(x.a->allocate(1000, {}, 0));
  EXPECT_EQ(x.first.calls()[static_cast<std::size_t>(device_call::alloc)], 1U) << "taken once";
  EXPECT_TRUE(x.a->check(0).ok() && x.a->check(1).ok());
}

TEST(allocator, first_use_under_grab_all_takes_every_pool_of_a_device) {
  settings s = grabbing();
  ASSERT_TRUE(s.set("pools", "a:256MiB,b:256MiB:growth,c:512MiB").ok());
  two_devices x{s};
  x.a->deallocate(x.a->allocate(1000, {}, 1));  // under growth
  EXPECT_EQ(x.a->stats(0)->reserved_bytes, 256 * mib);
  EXPECT_LT(x.a->stats(1)->reserved_bytes, 256 * mib);
  EXPECT_EQ(x.a->stats(2)->reserved_bytes, 512 * mib);
  EXPECT_EQ(x.a->stats(3)->reserved_bytes, 256 * mib) << "of the second device";
}

TEST(allocator, a_device_that_first_use_cannot_take_is_logged_and_the_one_in_use_serves) {
  two_devices x{grabbing()};
  x.second.fail_nth(device_call::alloc, 1, errc::device_error);
  testing::internal::CaptureStderr();
  EXPECT_TRUE(x.a->try_allocate({.bytes = 1000, .device = 0}).ok());
  EXPECT_THAT(testing::internal::GetCapturedStderr(), HasSubstr("pool 1 (grab_all) is not taken yet: "));
  EXPECT_EQ(x.first.used_bytes(), gib);
  EXPECT_EQ(x.second.used_bytes(), 0U);
  EXPECT_TRUE(x.a->try_allocate({.bytes = 1000, .device = 1}).ok()) << "its own use tries again";
  EXPECT_EQ(x.second.used_bytes(), gib);
}

TEST(allocator, a_first_request_that_fails_is_no_use_yet) {
  two_devices x{grabbing()};
  x.second.fail_nth(device_call::alloc, 1, errc::device_error);
  x.second.fail_nth(device_call::alloc, 2, errc::device_error);
  oom_report why;
  EXPECT_FALSE(x.a->try_allocate({.bytes = 1000, .device = 1}, &why).ok());
  EXPECT_EQ(why.cause, oom_cause::driver_error) << "the error of the device that was asked";
  EXPECT_EQ(x.first.used_bytes(), 0U);
  EXPECT_TRUE(x.a->try_allocate({.bytes = 1000, .device = 1}).ok());
  EXPECT_EQ(x.first.used_bytes(), gib);
}

TEST(allocator, only_a_refusal_makes_a_report) {
  two_devices x{grabbing()};
  oom_slot refusal;
  const result<void*> served = x.a->try_allocate({.bytes = 1000}, refusal);
  ASSERT_TRUE(served.ok());
  EXPECT_EQ(refusal, nullptr);
  EXPECT_EQ(x.a->try_allocate({.bytes = 2 * gib}, refusal).code(), errc::out_of_memory);
  ASSERT_NE(refusal, nullptr);
  EXPECT_EQ(refusal->requested_bytes, 2 * gib);
  EXPECT_EQ(x.a->try_allocate({.bytes = 0}, refusal).code(), errc::invalid_argument);
  EXPECT_EQ(refusal, nullptr) << "that of the call before";
  x.a->deallocate(*served);
}

TEST(allocator, first_use_by_many_threads_takes_each_device_once) {
  two_devices x{grabbing()};
  std::vector<std::thread> threads;
  for (int t = 0; t < 8; ++t) {
    threads.emplace_back([&x, t] { x.a->deallocate(x.a->allocate(1000, {}, t % 2)); });
  }
  for (std::thread& each : threads) each.join();
  EXPECT_EQ(x.first.used_bytes(), gib);
  EXPECT_EQ(x.second.used_bytes(), gib);
  EXPECT_TRUE(x.a->check(0).ok() && x.a->check(1).ok());
}

TEST(allocator, expandable_is_caching_where_the_device_maps_no_pages_and_says_so) {
  sim_config c;
  c.page_bytes = 0;
  sim_device on{c};
  device* const devices[] = {&on};
  settings s;
  ASSERT_TRUE(s.set("policy", "expandable").ok());
  testing::internal::CaptureStderr();
  auto opened = allocator::open(devices, s);
  EXPECT_THAT(testing::internal::GetCapturedStderr(), HasSubstr("cannot map pages, which policy expandable needs"));
  ASSERT_TRUE(opened.ok()) << opened.why().message();
  EXPECT_EQ((*opened)->devices()[0].policy, "caching");
  (*opened)->deallocate((*opened)->allocate(3 * mib));
  EXPECT_EQ((*opened)->stats(0)->reserved_bytes, 20 * mib) << "a segment of caching";
}

TEST(allocator, each_pool_of_expandable_has_pages_and_addresses_of_its_own) {
  settings s;
  ASSERT_TRUE(s.set("policy", "expandable").ok());
  ASSERT_TRUE(s.set("pools", "a:64MiB,b:128MiB").ok());
  two_devices x{s};
  void* const p = x.a->allocate(60 * mib, {}, 0);
  void* const q = x.a->allocate(60 * mib, {}, 1);
  EXPECT_FALSE(x.a->try_allocate({.bytes = 10 * mib, .device = 0}).ok());
  x.a->deallocate(p);
  EXPECT_TRUE(x.a->try_allocate({.bytes = 64 * mib, .device = 0}).ok());
  EXPECT_LE(x.a->stats(0)->reserved_bytes, 64 * mib);
  EXPECT_EQ(x.first.used_bytes(), x.a->stats(0)->reserved_bytes + x.a->stats(1)->reserved_bytes);
  x.a->deallocate(q);
}

TEST(allocator, numbers_logical_devices_through_and_keeps_them_apart) {
  settings s;
  ASSERT_TRUE(s.set("pools", "a:1GiB,b:2GiB").ok());
  two_devices x{s};
  ASSERT_EQ(x.a->devices().size(), 4U);
  EXPECT_EQ(x.a->devices()[3].physical_ordinal, 1);
  EXPECT_EQ(x.a->devices()[3].name, "b");
  void* const p = x.a->allocate(mib, {}, 3);
  EXPECT_EQ(x.first.used_bytes(), 0U);
  EXPECT_GT(x.second.used_bytes(), 0U);
  EXPECT_EQ(x.a->try_deallocate(p, {.device = 2}).code(), errc::wrong_device);
  EXPECT_EQ(x.a->try_deallocate(p, {.device = 4}).code(), errc::wrong_device);
  EXPECT_EQ(x.a->stats(3)->live_blocks, 1U) << "a refused free changes nothing";
  EXPECT_TRUE(x.a->try_deallocate(p, {.device = 3}).ok());
  EXPECT_EQ(x.a->stats(3)->misuses, 1U);
}

TEST(allocator, settings_of_one_device_are_that_devices_alone) {
  settings s;
  ASSERT_TRUE(s.apply({{"GPUMEM_LIMIT", "4GiB"}, {"GPUMEM_LIMIT_1", "1GiB"}, {"GPUMEM_POLICY_1", "grab_all"}}).ok());
  two_devices x{s};
  EXPECT_EQ(x.a->devices()[0].limit_bytes, 4 * gib);
  EXPECT_EQ(x.a->devices()[1].limit_bytes, gib);
  EXPECT_EQ(x.a->devices()[1].policy, "grab_all");
}

TEST(allocator, refuses_a_device_that_is_null) {
  sim_device first{two_devices::numbered(0)};
  device* const devices[] = {&first, nullptr};
  const auto opened = allocator::open(devices, {});
  EXPECT_EQ(opened.code(), errc::invalid_argument);
  EXPECT_THAT(opened.why().message(), HasSubstr("is null"));
}

TEST(allocator, an_empty_callback_is_none) {
  two_devices x;
  std::vector<std::string> lines;
  const log_sink before = set_log_sink([&lines](std::string_view line) { lines.emplace_back(line); });
  x.a->on_out_of_memory({});
  EXPECT_EQ(x.a->try_allocate({.bytes = x.first.info().total_bytes + mib}).code(), errc::out_of_memory);
  set_log_sink(before);
  EXPECT_THAT(lines, ::testing::Each(::testing::Not(HasSubstr("callback"))));
}

TEST(allocator, a_block_that_is_free_is_described_as_its_own_pools) {
  two_devices x;
  void* const p = x.a->allocate(mib, {}, 0);
  EXPECT_EQ(x.a->describe(p)->device, 0);
  x.a->deallocate(p);
  EXPECT_THAT(x.a->describe(p).why().message(), HasSubstr("a live block of pool 0"));
  void* const other = x.a->allocate(mib, {}, 1);
  x.a->deallocate(other);
  EXPECT_THAT(x.a->describe(other).why().message(), HasSubstr("a live block of pool 1"));
}

TEST(allocator, captures_only_on_the_device_that_knows_the_stream) {
  two_devices x;
  const stream_ref s = x.second.create_stream();
  ASSERT_TRUE(x.a->capture_begin(s).ok());
  EXPECT_EQ(x.a->capture_begin(s).code(), errc::invalid_argument);
  const result<graph_ref> g = x.a->capture_end(s);
  ASSERT_TRUE(g.ok());
  EXPECT_TRUE(x.a->graph_release(*g).ok());
  EXPECT_EQ(x.a->graph_release(*g).code(), errc::invalid_argument);
  EXPECT_FALSE(x.a->capture_end(s).ok());
}

TEST(allocator, refuses_a_limit_that_the_device_or_the_other_pools_do_not_leave) {
  settings s;
  ASSERT_TRUE(s.set("pools", "40GiB,30GiB").ok());
  two_devices x{s};
  EXPECT_EQ(x.a->set_limit(0, 51 * gib).code(), errc::bad_setting);
  EXPECT_EQ(x.a->set_limit(0, 0).code(), errc::bad_setting);
  EXPECT_EQ(x.a->set_limit(9, gib).code(), errc::wrong_device);
  EXPECT_TRUE(x.a->set_limit(0, 50 * gib).ok());
}

TEST(allocator, says_its_settings_and_pools_when_asked_to) {
  std::vector<std::string> lines;
  const log_sink before = set_log_sink([&lines](std::string_view line) { lines.emplace_back(line); });
  settings s;
  EXPECT_TRUE(s.set("verbose", "1").ok());
  EXPECT_TRUE(s.set("policy", "grab_all").ok());
  {
    two_devices x{s};
    static_cast<void>(x.a->allocate(512));
  }
  set_log_sink(before);
  EXPECT_THAT(lines, Contains(HasSubstr("GPUMEM_POLICY=grab_all")));
  EXPECT_THAT(lines, Contains(HasSubstr("pool 1 is logical device 1 on device 1")));
  EXPECT_THAT(lines, Contains(HasSubstr("got 78.24 GiB of 78.24 GiB at first use")));
}

TEST(allocator, a_refused_free_is_logged_and_counted_and_nothing_else) {
  std::vector<std::string> lines;
  const log_sink before = set_log_sink([&lines](std::string_view line) { lines.emplace_back(line); });
  two_devices x;
  int not_ours = 0;
  x.a->deallocate(&not_ours);
  x.a->deallocate(nullptr);
  set_log_sink(before);
  ASSERT_EQ(lines.size(), 1U);
  EXPECT_THAT(lines[0], HasSubstr("is not a block"));
  EXPECT_EQ(x.a->stats(0)->misuses, 1U);
}

TEST(allocator, each_logical_device_has_a_trace_of_its_own) {
  const std::filesystem::path folder = std::filesystem::temp_directory_path() / "gpumem_allocator_test";
  std::filesystem::create_directories(folder);
  settings s;
  s.trace_path = (folder / "runs.csv").string();
  {
    two_devices x{s};
    x.a->deallocate(x.a->allocate(512, {}, 0));
    x.a->deallocate(x.a->allocate(512, {}, 1));
  }
  EXPECT_GT(std::filesystem::file_size(folder / "runs.csv"), 0U);
  EXPECT_GT(std::filesystem::file_size(folder / "runs.1.csv"), 0U);
  std::filesystem::remove_all(folder);
}

}  // namespace
}  // namespace gpumem
