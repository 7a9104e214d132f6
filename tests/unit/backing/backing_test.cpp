#include "backing.hpp"

#include <gtest/gtest.h>

#include "bits.hpp"
#include "gpumem/sim_device.hpp"

namespace gpumem {
namespace {

TEST(backing, a_plain_segment_is_one_allocation_and_one_free) {
  sim_device d;
  const result<backed_segment> s = acquire_segment(d, segment_kind::plain, 4 * mib);
  ASSERT_TRUE(s.ok());
  EXPECT_EQ(d.used_bytes(), 4 * mib);
  EXPECT_TRUE(return_segment(d, *s).ok());
  EXPECT_EQ(d.used_bytes(), 0U);
}

TEST(backing, a_mapped_segment_can_be_used_and_leaves_nothing_behind) {
  sim_device d;
  const result<backed_segment> s = acquire_segment(d, segment_kind::mapped, 8 * mib);
  ASSERT_TRUE(s.ok()) << s.why().message();
  EXPECT_EQ(d.used_bytes(), 8 * mib);
  EXPECT_EQ(d.live_mappings(), 4U);
  d.handed_out(s->begin, 8 * mib, {});
  d.given_back(s->begin);
  EXPECT_EQ(d.hazard_count(), 0U);
  ASSERT_TRUE(d.synchronize().ok());
  EXPECT_TRUE(return_segment(d, *s).ok());
  EXPECT_EQ(d.used_bytes(), 0U);
  EXPECT_EQ(d.live_mappings(), 0U);
  EXPECT_EQ(d.hazard_count(), 0U);
}

TEST(backing, a_failure_of_any_call_leaves_nothing_behind_and_names_that_call) {
  for (const device_call call :
       {device_call::reserve, device_call::create, device_call::map, device_call::set_access}) {
    sim_device d;
    d.fail_nth(call, 1);
    const result<backed_segment> s = acquire_segment(d, segment_kind::mapped, 8 * mib);
    ASSERT_FALSE(s.ok()) << to_string(call);
    EXPECT_NE(s.why().message().find(to_string(call)), std::string::npos) << s.why().message();
    EXPECT_EQ(d.used_bytes(), 0U) << to_string(call);
    EXPECT_EQ(d.live_mappings(), 0U) << to_string(call);
  }
}

TEST(backing, a_device_without_pages_says_so) {
  sim_config config;
  config.page_bytes = 0;
  sim_device d{config};
  EXPECT_EQ(acquire_segment(d, segment_kind::mapped, 8 * mib).code(), errc::unsupported);
}

}  // namespace
}  // namespace gpumem
