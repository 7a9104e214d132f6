#include "stream_keys.hpp"

#include <gtest/gtest.h>

#include "capture_counts.hpp"
#include "gpumem/sim_device.hpp"

namespace gpumem {
namespace {

stream_ref handle(std::uintptr_t number) { return {reinterpret_cast<void*>(number)}; }

TEST(stream_keys, know_a_created_stream_by_its_handle_under_notify_alone) {
  sim_device device;
  const stream_keys queried{device, stream_id_mode::query};
  const stream_keys notified{device, stream_id_mode::notify};
  for (const std::uintptr_t legacy : {0U, 1U}) {
    EXPECT_TRUE(queried.is_known(handle(legacy)));
    EXPECT_EQ(stream_keys::known(handle(legacy)), 0U);
  }
  EXPECT_FALSE(queried.is_known(handle(4096)));
  EXPECT_TRUE(notified.is_known(handle(4096)));
  EXPECT_EQ(stream_keys::known(handle(4096)), 4096U);
  EXPECT_FALSE(notified.is_known(handle(2))) << "a stream of its own in every thread";
}

TEST(stream_keys, trust_a_created_handle_under_notify_alone) {
  sim_device device;
  const stream_keys queried{device, stream_id_mode::query};
  const stream_keys notified{device, stream_id_mode::notify};
  EXPECT_TRUE(queried.is_created_under_query(handle(4096)));
  EXPECT_FALSE(queried.is_created_under_query(handle(2)));
  EXPECT_FALSE(notified.is_created_under_query(handle(4096)));
  EXPECT_TRUE(queried.stays_valid({}));
  EXPECT_FALSE(queried.stays_valid(handle(4096)));
  EXPECT_TRUE(notified.stays_valid(handle(4096)));
  EXPECT_FALSE(notified.stays_valid(handle(2)));
}

TEST(capture_counts, pause_fences_for_an_announced_capture_alone) {
  capture_counts captures;
  captures.begin(capture_effect::foreign);
  EXPECT_EQ(captures.local(), 0U);
  EXPECT_TRUE(captures.any_foreign());
  captures.begin(capture_effect::noticed);
  EXPECT_EQ(captures.local(), 1U);
  EXPECT_FALSE(captures.pause_fences());
  captures.begin(capture_effect::announced);
  EXPECT_EQ(captures.local(), 2U);
  EXPECT_TRUE(captures.pause_fences());
  for (const capture_effect each : {capture_effect::foreign, capture_effect::noticed, capture_effect::announced}) {
    captures.end(each);
  }
  EXPECT_EQ(captures.local(), 0U);
  EXPECT_FALSE(captures.any_foreign());
  EXPECT_FALSE(captures.pause_fences());
}

TEST(capture_counts, permit_events_on_the_context_while_a_permit_lives) {
  capture_counts captures;
  {
    const context_events outer{captures};
    const context_events inner{captures};
    EXPECT_TRUE(captures.permit_context_events());
  }
  EXPECT_FALSE(captures.permit_context_events());
}

}  // namespace
}  // namespace gpumem
