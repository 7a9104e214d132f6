// Real Thrust containers and algorithms over the resource, with Thrust's C++ device system, on a simulated device with
// host memory.
#include "gpumem/adapters/thrust.hpp"

#include <gtest/gtest.h>
#include <thrust/device_vector.h>
#include <thrust/functional.h>
#include <thrust/host_vector.h>
#include <thrust/reduce.h>
#include <thrust/scan.h>
#include <thrust/sequence.h>
#include <thrust/sort.h>
#include <thrust/system/cpp/execution_policy.h>
#include <thrust/transform.h>

#include <algorithm>
#include <random>
#include <vector>

#include "gpumem/sim_device.hpp"

namespace gpumem {
namespace {

static_assert(THRUST_DEVICE_SYSTEM == THRUST_DEVICE_SYSTEM_CPP);

class Thrust : public ::testing::Test {
 protected:
  void SetUp() override {
    device* devices[]{&gpu_};
    settings with;
    ASSERT_TRUE(with.set("pools", "64MiB,64MiB"));
    auto opened = allocator::open(devices, with);
    ASSERT_TRUE(opened) << opened.why().message();
    memory_ = *std::move(opened);
  }
  statistics now(int logical = 0) { return *memory_->stats(logical); }

  sim_device gpu_{{.capacity_bytes = std::uint64_t{1} << 30, .host_memory = true}};
  std::unique_ptr<allocator> memory_;
};

template <typename T>
using vector = thrust::device_vector<T, thrust_allocator<T>>;

std::vector<int> numbers(std::size_t n) {
  std::mt19937 random{1};
  std::vector<int> out(n);
  for (int& x : out) x = static_cast<int>(random() % 100'000);
  return out;
}

TEST_F(Thrust, SortsInItsMemory) {
  thrust_resource resource{*memory_};
  std::vector<int> host = numbers(100'000);
  vector<int> v{host.begin(), host.end(), &resource};
  EXPECT_EQ(now().requested_bytes, 400'000U);
  thrust::sort(v.begin(), v.end());
  std::sort(host.begin(), host.end());
  const thrust::host_vector<int> sorted{v};
  EXPECT_TRUE(std::equal(host.begin(), host.end(), sorted.begin(), sorted.end()));
}

TEST_F(Thrust, AlgorithmsTakeTheirScratchFromIt) {
  thrust_resource resource{*memory_};
  const std::vector<int> host = numbers(50'000);
  vector<int> keys{host.begin(), host.end(), &resource};
  vector<int> values(keys.size(), &resource);
  thrust::sequence(values.begin(), values.end());
  const std::uint64_t before = now().allocations;
  thrust_allocator<char> scratch{&resource};
  const auto policy = thrust::cpp::par(scratch);
  thrust::stable_sort_by_key(policy, keys.begin(), keys.end(), values.begin());
  EXPECT_GT(now().allocations, before) << "the sort needs memory of its own";
  EXPECT_EQ(now().live_blocks, 2U) << "and gave it back";
  for (std::size_t i = 0; i < host.size(); i += 997) EXPECT_EQ(keys[i], host[static_cast<std::size_t>(values[i])]);
}

TEST_F(Thrust, ReducesTransformsAndScans) {
  thrust_resource resource{*memory_};
  vector<long> x(1000, &resource);
  thrust::sequence(x.begin(), x.end(), 1L);
  EXPECT_EQ(thrust::reduce(x.begin(), x.end()), 500'500);
  vector<long> y(1000, &resource);
  thrust::transform(x.begin(), x.end(), y.begin(), thrust::negate<long>{});
  thrust::inclusive_scan(y.begin(), y.end(), y.begin());
  EXPECT_EQ(y.back(), -500'500);
}

TEST_F(Thrust, VectorsGrowMoveAndGiveBack) {
  thrust_resource resource{*memory_};
  {
    vector<int> v{thrust_allocator<int>{&resource}};
    for (int i = 0; i < 10'000; ++i) v.push_back(i);
    vector<int> w{std::move(v)};
    EXPECT_EQ(w[9'999], 9'999);
    EXPECT_EQ(now().live_blocks, 1U);
    w.clear();
    w.shrink_to_fit();
  }
  EXPECT_EQ(now().live_blocks, 0U);
  EXPECT_EQ(now().misuses, 0U);
}

TEST_F(Thrust, KeepsToItsLogicalDeviceAndStream) {
  const stream_ref s = gpu_.create_stream();
  thrust_resource first{*memory_, 0};
  thrust_resource second{*memory_, 1, s};
  EXPECT_EQ(second.stream(), s);
  const vector<int> v(10, &second);
  EXPECT_EQ(now(0).live_blocks, 0U);
  EXPECT_EQ(now(1).live_blocks, 1U);
  EXPECT_FALSE(first.is_equal(second));
  EXPECT_TRUE(first.is_equal(first));
}

TEST_F(Thrust, OutOfMemoryArrivesWithItsReport) {
  thrust_resource resource{*memory_};
  try {
    const vector<char> v(65U << 20, &resource);
    FAIL() << "the pool has 64 MiB";
  } catch (const out_of_memory& e) {
    EXPECT_EQ(e.report().cause, oom_cause::limit);
  }
}

TEST_F(Thrust, AlignsAsItIsAsked) {
  thrust_resource resource{*memory_};
  const auto p = resource.allocate(100, 1 << 14);
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(p.get()) % (1 << 14), 0U);
  resource.deallocate(p, 100, 1 << 14);
}

}  // namespace
}  // namespace gpumem
