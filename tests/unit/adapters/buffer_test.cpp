// buffer<T> over the simulated device; the referee reports every block that is reused too early.
#include "gpumem/adapters/buffer.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <numeric>
#include <string>
#include <type_traits>

#include "gpumem/sim_device.hpp"

namespace gpumem {
namespace {

using ::testing::HasSubstr;

class Buffer : public ::testing::Test {
 protected:
  void SetUp() override {
    device* devices[]{&gpu_};
    settings with;
    ASSERT_TRUE(with.set("limit", "64MiB"));
    auto opened = allocator::open(devices, with);
    ASSERT_TRUE(opened) << opened.why().message();
    memory_ = *std::move(opened);
  }
  statistics now() { return *memory_->stats(0); }

  sim_device gpu_{{.capacity_bytes = std::uint64_t{1} << 30, .host_memory = true}};
  std::unique_ptr<allocator> memory_;
};

static_assert(std::is_nothrow_move_constructible_v<buffer<int>> && std::is_nothrow_move_assignable_v<buffer<int>>);
static_assert(!std::is_copy_constructible_v<buffer<int>> && !std::is_copy_assignable_v<buffer<int>>);

TEST_F(Buffer, HoldsItsElementsForAsLongAsItIsInScope) {
  {
    const buffer<double> x{*memory_, 1000, gpu_.create_stream()};
    ASSERT_EQ(x.size(), 1000U);
    EXPECT_EQ(x.size_bytes(), 8000U);
    EXPECT_EQ(x.span().size(), 1000U);
    std::iota(x.span().begin(), x.span().end(), 0.0);  // this device has host memory
    EXPECT_EQ(x.data()[999], 999.0);
    EXPECT_EQ(now().live_blocks, 1U);
    EXPECT_EQ(now().requested_bytes, 8000U);
  }
  EXPECT_EQ(now().live_blocks, 0U);
  EXPECT_EQ(now().misuses, 0U);
}

TEST_F(Buffer, NothingTakesNothing) {
  buffer<int> none;
  EXPECT_TRUE(none.empty());
  EXPECT_EQ(none.data(), nullptr);
  EXPECT_TRUE(none.also_used_on({}));
  const buffer<int> zero{*memory_, 0};
  EXPECT_EQ(now().allocations, 0U);
  EXPECT_THROW(none.resize(1), bad_request);
}

TEST_F(Buffer, MovesAndLeavesNothingBehind) {
  buffer<int> a{*memory_, 10};
  int* const block = a.data();
  buffer<int> b{std::move(a)};
  EXPECT_EQ(b.data(), block);
  EXPECT_TRUE(a.empty());  // NOLINT: the moved-from buffer
  buffer<int> c{*memory_, 20};
  c = std::move(b);
  EXPECT_EQ(c.data(), block);
  EXPECT_EQ(c.size(), 10U);
  EXPECT_EQ(now().live_blocks, 1U) << "what c had is free";
  buffer<int>& itself = c;
  c = std::move(itself);
  EXPECT_EQ(c.data(), block);
  c.reset();
  EXPECT_EQ(now().live_blocks, 0U);
}

TEST_F(Buffer, ResizeKeepsTheBlockWhereItIsLargeEnough) {
  buffer<int> x{*memory_, 100};
  int* const block = x.data();
  x.resize(10);
  x.resize(100);
  EXPECT_EQ(x.data(), block);
  x.resize(1000);
  EXPECT_EQ(x.size(), 1000U);
  EXPECT_EQ(x.capacity(), 1000U);
  EXPECT_EQ(now().live_blocks, 1U);
}

TEST_F(Buffer, ResizeCopiesTheStatedElements) {
  const stream_ref s = gpu_.create_stream();
  buffer<int> x{*memory_, 100, s};
  std::iota(x.span().begin(), x.span().end(), 0);
  int copies = 0;
  const auto copy = [&](int* to, const int* from, std::size_t bytes, stream_ref on) {
    EXPECT_EQ(on, s);
    EXPECT_EQ(bytes, 400U);
    std::copy_n(from, bytes / sizeof(int), to);
    ++copies;
  };
  x.resize(200, copy);
  EXPECT_EQ(x.data()[99], 99);
  x.resize(150, copy);
  EXPECT_EQ(copies, 1);
}

TEST_F(Buffer, AResizeThatFailsChangesNothing) {
  buffer<int> x{*memory_, 100};
  x.data()[7] = 7;
  EXPECT_THROW(x.resize(std::size_t{1} << 30), out_of_memory);
  EXPECT_THROW(x.resize(SIZE_MAX / 2), bad_request) << "more bytes than there are addresses";
  EXPECT_EQ(x.size(), 100U);
  EXPECT_EQ(x.data()[7], 7);
}

TEST_F(Buffer, IsFreedInTheOrderOfItsStream) {
  const stream_ref a = gpu_.create_stream();
  const stream_ref b = gpu_.create_stream();
  const auto at = [](const buffer<char>& x) {
    return static_cast<address>(reinterpret_cast<std::uintptr_t>(x.data()));
  };
  for (int i = 0; i < 50; ++i) {
    buffer<char> x{*memory_, 3 << 20, i % 2 == 0 ? a : b};
    gpu_.handed_out(at(x), x.size_bytes(), x.stream());
    gpu_.enqueue_use(x.stream(), 1'000'000, at(x), x.size_bytes());
    if (i % 3 == 0) {  // the other stream works on it as well
      const stream_ref other = i % 2 == 0 ? b : a;
      gpu_.enqueue_use(other, 5'000'000, at(x), x.size_bytes());
      ASSERT_TRUE(x.also_used_on(other));
    }
    if (i % 5 == 0) {  // or becomes the buffer's stream
      const stream_ref other = i % 2 == 0 ? b : a;
      const fence f = *gpu_.record(x.stream());
      ASSERT_TRUE(gpu_.wait_stream(other, f));
      gpu_.drop(f);
      x.set_stream(other);
      gpu_.enqueue_use(other, 9'000'000, at(x), x.size_bytes());
    }
    gpu_.given_back(at(x));
  }
  EXPECT_EQ(gpu_.hazard_count(), 0U) << gpu_.hazards().front().to_string();
  EXPECT_EQ(now().live_blocks, 0U);
}

TEST_F(Buffer, ReleaseLeavesTheBlockToTheCaller) {
  buffer<int> x{*memory_, 10};
  int* const block = x.release();
  EXPECT_TRUE(x.empty());
  x.resize(20);
  EXPECT_NE(x.data(), block);
  memory_->deallocate(block);
  EXPECT_EQ(now().live_blocks, 1U);
  EXPECT_EQ(now().misuses, 0U);
}

}  // namespace
}  // namespace gpumem
