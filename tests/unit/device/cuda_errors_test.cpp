// Every driver function that gpumem calls fails, at its first, second, ... call, in the middle of a program: the state
// stays intact, no memory in use is handed out, nothing leaks unnoticed, and the next program works.
#include <cuda.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "bits.hpp"
#include "gpumem/allocator.hpp"
#include "gpumem/cuda_device.hpp"
#include "log.hpp"
#include "simcuda.hpp"

namespace gpumem {
namespace {

using ::testing::HasSubstr;

const cuda_driver* driver() { return *resolve_cuda_driver(reinterpret_cast<void*>(&cuGetProcAddress)); }

std::vector<std::string> functions() {
  return {
#define DRIVER(member, name, version, type, since) name,
#include "cuda_driver.def"
  };
}

class CudaErrors : public ::testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    simcuda::configure({.devices = 2, .bytes = 256 * mib});
    former_ = set_log_sink([](std::string_view) {});  // leaked blocks are logged, as they should be
    static_cast<void>(driver());
  }
  void TearDown() override { set_log_sink(former_); }
  log_sink former_;
};

/// The program's own calls must not meet the planned failure, so it creates its streams first.
struct program_streams {
  CUstream one = nullptr;
  CUstream two = nullptr;
  program_streams() {
    CUcontext context = nullptr;
    EXPECT_EQ(cuDevicePrimaryCtxRetain(&context, 0), CUDA_SUCCESS);
    EXPECT_EQ(cuCtxSetCurrent(context), CUDA_SUCCESS);
    EXPECT_EQ(cuStreamCreate(&one, CU_STREAM_NON_BLOCKING), CUDA_SUCCESS);
    EXPECT_EQ(cuStreamCreate(&two, CU_STREAM_NON_BLOCKING), CUDA_SUCCESS);
    EXPECT_EQ(cuCtxSetCurrent(nullptr), CUDA_SUCCESS);
  }
};

// Two streams, memory that passes between them, a second user, out of memory, trim. Requests may fail with a status;
// successful ones must be correct.
void work(allocator& a, const program_streams& s) {
  std::vector<void*> live;
  const auto take = [&](std::uint64_t bytes, CUstream on) {
    const auto got = a.try_allocate({.bytes = bytes, .stream = {on}});
    if (!got) {
      EXPECT_FALSE(got.why().message().empty());
      return;
    }
    simcuda::device(0).handed_out(reinterpret_cast<std::uintptr_t>(*got), bytes, simcuda::stream_of(on));
    simcuda::use(on, 50'000, reinterpret_cast<std::uintptr_t>(*got), bytes);
    live.push_back(*got);
  };
  const auto give = [&] {
    if (live.empty()) return;
    simcuda::device(0).given_back(reinterpret_cast<std::uintptr_t>(live.back()));
    const status freed = a.try_deallocate(live.back());
    EXPECT_TRUE(freed.ok()) << freed.message();
    live.pop_back();
  };
  for (int round = 0; round < 3; ++round) {
    for (int i = 0; i < 6; ++i) take((1 + static_cast<std::uint64_t>(i)) * 5 * mib, i % 2 == 0 ? s.one : s.two);
    if (!live.empty()) {
      // If the use could not be recorded, the program does not make it.
      if (a.record_use(live.back(), {s.one})) {
        simcuda::use(s.one, 90'000, reinterpret_cast<std::uintptr_t>(live.back()), mib);
      }
    }
    while (live.size() > 2) give();
    take(120 * mib, round % 2 == 0 ? s.two : s.one);
    take(300 * mib, s.one);
    while (!live.empty()) give();
    static_cast<void>(a.trim(0, 40 * mib));
    const status whole = a.check(0);
    EXPECT_TRUE(whole.ok()) << whole.message();
  }
}

TEST_P(CudaErrors, InTheMiddleOfAProgram) {
  for (const CUresult error : {CUDA_ERROR_UNKNOWN, CUDA_ERROR_OUT_OF_MEMORY, CUDA_ERROR_INVALID_VALUE}) {
    for (const char* ids : {"query", "notify"}) {
      for (unsigned nth = 1; nth <= 6; ++nth) {
        simcuda::configure({.devices = 2, .bytes = 256 * mib});
        const cuda_driver* const table = driver();
        const program_streams s;
        simcuda::fail(GetParam(), nth, error);
        auto opened = open_cuda_device({.ordinal = 0, .driver = table});
        if (!opened) {
          EXPECT_THAT(opened.why().message(), HasSubstr(GetParam()));
          continue;
        }
        device* const on = opened->get();
        settings with;
        ASSERT_TRUE(with.set("stream_ids", ids).ok());
        ASSERT_TRUE(with.set("policy", nth % 2 == 0 ? "caching" : "growth").ok());
        auto a = allocator::open({&on, 1}, with);
        if (!a) {
          EXPECT_THAT(a.why().message(), HasSubstr(GetParam()));
          continue;
        }
        work(**a, s);
        for (const hazard& h : simcuda::device(0).hazards()) ADD_FAILURE() << GetParam() << ": " << h.to_string();
        const std::uint64_t reserved = (*a)->stats(0)->reserved_bytes;
        EXPECT_EQ(simcuda::device(0).used_bytes(), reserved) << "what the device gave is what the books say";
        a->reset();
        opened->reset();
        // A pending failure must not affect the next program.
        simcuda::configure({.devices = 2, .bytes = 256 * mib});
      }
    }
  }
}

TEST(CudaErrorsOfOpening, NameTheFunctionAndLeaveNothingBehind) {
  for (const char* function : {"cuDeviceGetCount", "cuDeviceGet", "cuDeviceGetName", "cuDeviceGetUuid",
                               "cuDeviceTotalMem", "cuDeviceGetAttribute", "cuDeviceCanAccessPeer"}) {
    simcuda::configure({.devices = 2, .bytes = 256 * mib});
    const cuda_driver* const table = driver();
    simcuda::fail(function, 1, CUDA_ERROR_UNKNOWN);
    const auto refused = open_cuda_device({.ordinal = 0, .driver = table, .peers = {1}});
    EXPECT_EQ(refused.code(), errc::device_error);
    EXPECT_THAT(refused.why().message(), HasSubstr(function));
    EXPECT_THAT(refused.why().message(), HasSubstr("CUDA_ERROR_UNKNOWN"));
    EXPECT_TRUE(open_cuda_device({.ordinal = 0, .driver = table, .peers = {1}}).ok());
  }
}

INSTANTIATE_TEST_SUITE_P(Of, CudaErrors, ::testing::ValuesIn(functions()), [](const auto& i) { return i.param; });

// If a graph cannot be watched, its memory is not lost: the program can still release the graph itself.
TEST(CudaErrorsOfGraphs, AGraphThatCannotBeWatchedIsReleasedByTheProgram) {
  for (const char* function : {"cuUserObjectCreate", "cuGraphRetainUserObject"}) {
    simcuda::configure({.devices = 1, .bytes = 256 * mib});
    const cuda_driver* const table = driver();
    const program_streams s;
    const auto on = *open_cuda_device({.ordinal = 0, .driver = table});
    device* const raw = on.get();
    const auto a = *allocator::open({&raw, 1}, settings{});
    simcuda::fail(function, 1, CUDA_ERROR_UNKNOWN);
    ASSERT_TRUE(a->capture_begin({s.one}).ok());
    ASSERT_EQ(cuStreamBeginCapture(s.one, CU_STREAM_CAPTURE_MODE_GLOBAL), CUDA_SUCCESS);
    void* const p = a->allocate(mib, {s.one});
    a->deallocate(p);
    CUgraph graph = nullptr;
    ASSERT_EQ(cuStreamEndCapture(s.one, &graph), CUDA_SUCCESS) << function;
    const auto left = a->capture_end({s.one});
    ASSERT_TRUE(left.ok()) << left.why().message();
    EXPECT_TRUE(a->graph_release(*left).ok());
    EXPECT_EQ(cuGraphDestroy(graph), CUDA_SUCCESS);
    EXPECT_TRUE(a->check(0).ok());
  }
}

}  // namespace
}  // namespace gpumem
