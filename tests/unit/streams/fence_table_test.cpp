#include "fence_table.hpp"

#include <gtest/gtest.h>

#include "gpumem/sim_device.hpp"

namespace gpumem {
namespace {

/// A fence on the device's context.
fence recorded_on(sim_device& device) {
  const result<fence> recorded = device.record_context();
  EXPECT_TRUE(recorded.ok());
  return *recorded;
}

TEST(fence_table, drops_a_fence_with_its_last_reference) {
  sim_device device;
  fence_table fences{device};
  const fence on_device = recorded_on(device);
  const fence_index f = fences.add({.device_fence = on_device, .refcount = 1});
  fences.ref(f);
  fences.unref(f);
  EXPECT_TRUE(device.query(on_device).ok());
  fences.unref(f);
  EXPECT_FALSE(device.query(on_device).ok());
  EXPECT_EQ(fences.add({.device_fence = recorded_on(device), .refcount = 1}), f) << "its number is reused";
}

TEST(fence_table, drops_at_its_end_what_is_still_referred_to) {
  sim_device device;
  const fence on_device = recorded_on(device);
  {
    fence_table fences{device};
    fences.add({.device_fence = on_device, .refcount = 2});
  }
  EXPECT_FALSE(device.query(on_device).ok());
}

TEST(fence_table, hands_out_each_reserved_fence_once) {
  sim_device device;
  fence_table fences{device};
  EXPECT_EQ(fences.unrecorded_on_context(), no_fence);
  const fence_index of_stream = fences.add_unrecorded({.stream = {}, .by_stream = true, .key = 3}, 1);
  EXPECT_EQ(fences.unrecorded_on_context(), no_fence);
  const fence_index of_context = fences.add_unrecorded({}, idle_owner);
  EXPECT_EQ(fences.unrecorded_on_context(), of_context);
  EXPECT_LT(fences[of_stream].number, fences[of_context].number);
  const std::vector<unrecorded_fence> taken = fences.take_unrecorded();
  ASSERT_EQ(taken.size(), 2U);
  EXPECT_EQ(taken[0].fence, of_stream);
  EXPECT_TRUE(fences.take_unrecorded().empty());
  EXPECT_EQ(fences[of_stream].status, tracked_fence::state::unrecorded);

  fences.recorded(taken[0], recorded_on(device));
  fences.recorded(taken[1], std::nullopt);
  EXPECT_EQ(fences.count(), 1U);
  EXPECT_EQ(fences[of_stream].status, tracked_fence::state::pending);
  EXPECT_EQ(fences[of_context].status, tracked_fence::state::failed);
  EXPECT_TRUE(fences[of_context].record_failed);
  EXPECT_EQ(fences[of_stream].refcount, 1U) << "the thread that recorded it has dropped its reference";
}

}  // namespace
}  // namespace gpumem
