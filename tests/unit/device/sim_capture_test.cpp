// Which calls invalidate a capture, and when captured work counts as done.
#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <vector>

#include "gpumem/sim_device.hpp"
#include "page.hpp"

namespace gpumem {
namespace {

class SimCapture : public ::testing::Test {
 protected:
  sim_device device{{.costs = {}}};
  stream_ref capturing = device.create_stream();
  stream_ref other = device.create_stream();
  fence old_fence = *device.record(capturing);
  fence other_fence = *device.record(other);
  address segment = *device.alloc(page);
  address pinned = *device.alloc_host(1);
  address range = *device.reserve(4 * page);
  page_run run = *device.create(page);

  void SetUp() override {
    ASSERT_TRUE(device.map(range, page, run));
    ASSERT_TRUE(device.set_access(range, page));
  }
  /// The result of the call during a capture, and that of the capture's end.
  std::pair<errc, errc> during_capture(const std::function<status()>& call) {
    EXPECT_TRUE(device.begin_capture(capturing));
    const errc answer = call().code();
    return {answer, device.end_capture(capturing).code()};
  }
};

const std::pair<errc, errc> refused_and_spoilt{errc::unsupported, errc::device_error};
const std::pair<errc, errc> allowed{errc::ok, errc::ok};

TEST_F(SimCapture, CallsThatSpoilIt) {
  EXPECT_EQ(during_capture([&] { return device.record(capturing).why(); }), refused_and_spoilt);
  EXPECT_EQ(during_capture([&] { return device.record_context().why(); }), refused_and_spoilt);
  EXPECT_EQ(during_capture([&] { return device.synchronize(); }), refused_and_spoilt);
  EXPECT_EQ(during_capture([&] { return device.wait_host(other_fence); }), refused_and_spoilt);
  EXPECT_EQ(during_capture([&] { return device.query(old_fence).why(); }), refused_and_spoilt);
  EXPECT_EQ(during_capture([&] { return device.wait_stream(capturing, other_fence); }), refused_and_spoilt);
  EXPECT_EQ(during_capture([&] { return device.free(segment); }), refused_and_spoilt);
  EXPECT_EQ(during_capture([&] { return device.free_host(pinned); }), refused_and_spoilt);
  EXPECT_EQ(during_capture([&] { return device.unmap(range, page); }), refused_and_spoilt);
}

TEST_F(SimCapture, RefusedCallsChangeNothing) {
  ASSERT_TRUE(device.begin_capture(capturing));
  EXPECT_FALSE(device.free(segment));
  EXPECT_FALSE(device.unmap(range, page));
  EXPECT_EQ(device.used_bytes(), 2 * page);
  EXPECT_EQ(device.live_mappings(), 1U);
  EXPECT_FALSE(device.end_capture(capturing));
  EXPECT_TRUE(device.free(segment));
  EXPECT_TRUE(device.unmap(range, page));
}

TEST_F(SimCapture, CallsThatItSurvives) {
  EXPECT_EQ(during_capture([&] { return device.alloc(page).why(); }), allowed);
  EXPECT_EQ(during_capture([&] { return device.create(page).why(); }), allowed);
  EXPECT_EQ(during_capture([&] { return device.map(range + page, page, run); }), allowed);
  EXPECT_EQ(during_capture([&] { return device.set_access(range + page, page); }), allowed);
  EXPECT_EQ(during_capture([&] { return device.memory().why(); }), allowed);
  EXPECT_EQ(during_capture([&] { return device.stream_id(capturing).why(); }), allowed);
  EXPECT_EQ(during_capture([&] { return device.record(other).why(); }), allowed);
  EXPECT_EQ(during_capture([&] { return device.query(other_fence).why(); }), allowed);
  EXPECT_EQ(during_capture([&] { return device.wait_stream(other, other_fence); }), allowed);
}

TEST_F(SimCapture, ErrorNamesTheCallThatSpoiltIt) {
  ASSERT_TRUE(device.begin_capture(capturing));
  EXPECT_FALSE(device.synchronize());
  EXPECT_FALSE(device.free(segment));
  const std::string message = device.end_capture(capturing).message();
  EXPECT_NE(message.find("a call of synchronize has spoilt the capture"), std::string::npos) << message;
}

TEST_F(SimCapture, SpoilingOneStreamLeavesTheOther) {
  ASSERT_TRUE(device.begin_capture(capturing));
  ASSERT_TRUE(device.begin_capture(other));
  EXPECT_FALSE(device.record(capturing));
  EXPECT_FALSE(device.end_capture(capturing));
  EXPECT_TRUE(device.end_capture(other));
}

TEST_F(SimCapture, GlobalCallsSpoilAll) {
  ASSERT_TRUE(device.begin_capture(capturing));
  ASSERT_TRUE(device.begin_capture(other));
  EXPECT_FALSE(device.synchronize());
  EXPECT_FALSE(device.end_capture(capturing));
  EXPECT_FALSE(device.end_capture(other));
}

TEST_F(SimCapture, SpoiltCaptureIsOverAndTheNextOneIsGood) {
  EXPECT_EQ(during_capture([&] { return device.synchronize(); }), refused_and_spoilt);
  EXPECT_TRUE(device.synchronize());
  EXPECT_TRUE(device.record(capturing));
  EXPECT_TRUE(device.begin_capture(capturing));
  EXPECT_TRUE(device.end_capture(capturing));
}

TEST_F(SimCapture, BeginAndEndComeInPairs) {
  EXPECT_EQ(device.end_capture(capturing).code(), errc::invalid_argument);
  ASSERT_TRUE(device.begin_capture(capturing));
  EXPECT_EQ(device.begin_capture(capturing).code(), errc::invalid_argument);
  EXPECT_EQ(device.destroy_stream(capturing).code(), errc::unsupported);
  EXPECT_TRUE(device.end_capture(capturing));
  EXPECT_EQ(device.begin_capture({}).code(), errc::unsupported);
}

TEST_F(SimCapture, WorkRunsWhenTheCaptureEnds) {
  ASSERT_TRUE(device.begin_capture(capturing));
  device.enqueue(capturing, 500);
  device.enqueue(capturing, 200);
  device.advance_to(10'000);
  ASSERT_TRUE(device.end_capture(capturing));
  ASSERT_TRUE(device.wait_host(*device.record(capturing)));
  EXPECT_EQ(device.now_ns(), 10'500U);
}

TEST_F(SimCapture, WorkOfASpoiltCaptureDoesNotRun) {
  ASSERT_TRUE(device.begin_capture(capturing));
  device.enqueue(capturing, 500);
  EXPECT_FALSE(device.synchronize());
  EXPECT_FALSE(device.end_capture(capturing));
  ASSERT_TRUE(device.synchronize());
  EXPECT_EQ(device.now_ns(), 0U);
}

TEST_F(SimCapture, CapturedUseIsNotKnownDoneUntilAfterTheCapture) {
  device.handed_out(segment, 512, capturing);
  ASSERT_TRUE(device.synchronize());
  ASSERT_TRUE(device.begin_capture(capturing));
  device.enqueue_use(capturing, 100, segment, 512);
  device.given_back(segment);
  device.advance_to(1'000'000);
  device.handed_out(segment, 512, other);
  EXPECT_EQ(device.hazard_count(), 1U);
  device.given_back(segment);
  ASSERT_TRUE(device.end_capture(capturing));
  ASSERT_TRUE(device.synchronize());
  device.handed_out(segment, 512, capturing);
  EXPECT_EQ(device.hazard_count(), 1U);
}

}  // namespace
}  // namespace gpumem
