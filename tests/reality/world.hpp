/// A program over the harsh simulated driver: its devices, its streams and an allocator with these settings. Checks the
/// referee's verdict at the end of each case.
#pragma once

#include <cuda.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <initializer_list>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "gpumem/allocator.hpp"
#include "gpumem/cuda_device.hpp"
#include "simcuda.hpp"

namespace gpumem::reality {

constexpr std::uint64_t mib = std::uint64_t{1} << 20;

inline std::uint64_t number(const void* p) { return static_cast<std::uint64_t>(reinterpret_cast<std::uintptr_t>(p)); }

class Reality : public testing::Test {
 protected:
  using options = std::initializer_list<std::pair<const char*, const char*>>;

  void open(const options& with = {}, simcuda::world_config world = {.devices = 2, .bytes = 2048 * mib}) {
    simcuda::configure(world);
    const auto* const driver = *resolve_cuda_driver(reinterpret_cast<void*>(&cuGetProcAddress));
    device_ = *open_cuda_device({.ordinal = 0, .driver = driver});
    settings s;
    for (const auto& [name, value] : with) ASSERT_TRUE(s.set(name, value).ok()) << name;
    device* const raw = device_.get();
    allocator_ = *allocator::open({&raw, 1}, s);
    ASSERT_EQ(cuDevicePrimaryCtxRetain(&context_, 0), CUDA_SUCCESS);
    ASSERT_EQ(cuCtxSetCurrent(context_), CUDA_SUCCESS);
  }
  void TearDown() override {
    for (const hazard& h : simcuda::device(0).hazards()) ADD_FAILURE() << h.to_string();
    if (allocator_ != nullptr) {
      EXPECT_TRUE(allocator_->check(0).ok()) << allocator_->check(0).message();
    }
    allocator_.reset();
    device_.reset();
    static_cast<void>(cuCtxSetCurrent(nullptr));
  }

  static CUstream stream() {
    CUstream s = nullptr;
    EXPECT_EQ(cuStreamCreate(&s, CU_STREAM_NON_BLOCKING), CUDA_SUCCESS);
    return s;
  }
  void* take(std::uint64_t bytes, CUstream s) {
    const auto got = allocator_->try_allocate({.bytes = bytes, .stream = {s}});
    EXPECT_TRUE(got.ok()) << got.why().message();
    if (!got) return nullptr;
    simcuda::device(0).handed_out(number(*got), bytes, simcuda::stream_of(s));
    return *got;
  }
  void give(void* p, const free_args& stated = {}) {
    simcuda::device(0).given_back(number(p));
    const status freed = allocator_->try_deallocate(p, stated);
    EXPECT_TRUE(freed.ok()) << freed.message();
  }
  static void begin(CUstream s) { ASSERT_EQ(cuStreamBeginCapture(s, CU_STREAM_CAPTURE_MODE_GLOBAL), CUDA_SUCCESS); }
  static CUgraph end(CUstream s) {
    CUgraph graph = nullptr;
    EXPECT_EQ(cuStreamEndCapture(s, &graph), CUDA_SUCCESS) << "the program's capture was spoilt";
    return graph;
  }
  /// Makes `to` wait for the work enqueued on `from` so far. If `from` captures, `to` joins the capture.
  static void wait(CUstream to, CUstream from) {
    CUevent e = nullptr;
    ASSERT_EQ(cuEventCreate(&e, CU_EVENT_DISABLE_TIMING), CUDA_SUCCESS);
    ASSERT_EQ(cuEventRecord(e, from), CUDA_SUCCESS);
    ASSERT_EQ(cuStreamWaitEvent(to, e, 0), CUDA_SUCCESS);
  }
  static void use(CUstream s, const void* p, std::uint64_t bytes, std::uint64_t lag_ns = 1000) {
    simcuda::use(s, lag_ns, number(p), bytes);
  }
  [[nodiscard]] std::uint64_t reserved() const { return allocator_->stats(0)->reserved_bytes; }

  std::unique_ptr<device> device_;
  std::unique_ptr<allocator> allocator_;
  CUcontext context_ = nullptr;
};

}  // namespace gpumem::reality
