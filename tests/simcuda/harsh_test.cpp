// Cases in which the simulated driver is as harsh as a card, or harsher. Each case quotes the sentence of the driver's
// documentation that it models.
#include <cuda.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <thread>

#include "bits.hpp"
#include "simcuda.hpp"

// Former signatures, which the newest headers do not declare.
extern "C" CUresult CUDAAPI cuCtxCreate_v2(CUcontext*, unsigned int, CUdevice);
extern "C" CUresult CUDAAPI cuStreamGetCaptureInfo_v2(CUstream, CUstreamCaptureStatus*, cuuint64_t*, CUgraph*,
                                                      const CUgraphNode**, std::size_t*);

namespace gpumem {
namespace {

class Harsh : public testing::Test {
 protected:
  void SetUp() override {
    GTEST_FLAG_SET(death_test_style, "threadsafe");  // a forked child could not use CUDA
    open({.devices = 2, .bytes = 64 * mib});
  }

  void open(const simcuda::world_config& config) {
    simcuda::configure(config);
    ASSERT_EQ(cuInit(0), CUDA_SUCCESS);
    ASSERT_EQ(cuDevicePrimaryCtxRetain(&context_, 0), CUDA_SUCCESS);
    ASSERT_EQ(cuCtxSetCurrent(context_), CUDA_SUCCESS);
  }
  static CUstream stream(unsigned int flags = CU_STREAM_NON_BLOCKING) {
    CUstream s = nullptr;
    EXPECT_EQ(cuStreamCreate(&s, flags), CUDA_SUCCESS);
    return s;
  }
  static CUevent event() {
    CUevent e = nullptr;
    EXPECT_EQ(cuEventCreate(&e, CU_EVENT_DISABLE_TIMING), CUDA_SUCCESS);
    return e;
  }
  static CUdeviceptr memory(std::size_t bytes = 4 * mib) {
    CUdeviceptr at = 0;
    EXPECT_EQ(cuMemAlloc(&at, bytes), CUDA_SUCCESS);
    return at;
  }
  static CUstreamCaptureStatus status_of(CUstream s) {
    CUstreamCaptureStatus now = CU_STREAM_CAPTURE_STATUS_NONE;
    EXPECT_EQ(cuStreamIsCapturing(s, &now), CUDA_SUCCESS);
    return now;
  }

  CUcontext context_ = nullptr;
};
using HarshDeathTest = Harsh;

// "Passing an invalid handle will result in undefined behavior." (cuStreamGetId)
TEST_F(HarshDeathTest, ADeadHandleAbortsAndNamesTheCall) {
  CUstream const s = stream();
  CUevent const e = event();
  ASSERT_EQ(cuStreamDestroy(s), CUDA_SUCCESS);
  ASSERT_EQ(cuEventDestroy(e), CUDA_SUCCESS);
  unsigned long long id = 0;
  CUcontext owner = nullptr;
  EXPECT_DEATH(cuStreamGetId(s, &id), "cuStreamGetId: a stream that is destroyed");
  EXPECT_DEATH(cuStreamGetCtx(s, &owner), "cuStreamGetCtx: a stream that is destroyed");
  EXPECT_DEATH(cuStreamQuery(s), "cuStreamQuery: a stream that is destroyed");
  EXPECT_DEATH(cuStreamDestroy(s), "cuStreamDestroy: a stream that is destroyed");
  EXPECT_DEATH(cuEventQuery(e), "cuEventQuery: an event that is destroyed");
  EXPECT_DEATH(cuEventRecord(e, nullptr), "cuEventRecord: an event that is destroyed");
}

// A program that requests a report at its end gets a count of dead handles instead.
TEST_F(Harsh, ADeadHandleIsCountedWhereTheWorldReports) {
  open({.bytes = 64 * mib, .abort_on_undefined = false});
  CUstream const s = stream();
  ASSERT_EQ(cuStreamDestroy(s), CUDA_SUCCESS);
  unsigned long long id = 0;
  EXPECT_EQ(cuStreamGetId(s, &id), CUDA_ERROR_INVALID_HANDLE);
  EXPECT_EQ(cuStreamGetId(s, &id), CUDA_ERROR_INVALID_HANDLE);
  EXPECT_THAT(simcuda::undefined_uses(),
              testing::ElementsAre(std::pair{std::string{"cuStreamGetId: a stream that is destroyed"}, 2U}));
  simcuda::configure({});  // nothing is told at the end of this program
}

// A stream's queue has a depth: a launch into a full one returns when a place is free.
TEST_F(Harsh, ACallThatFindsTheQueueFullWaitsForAPlace) {
  open({.bytes = 64 * mib, .queue_depth = 8});
  CUstream const s = stream();
  const CUdeviceptr at = memory();
  sim_device& gpu = simcuda::device(0);
  for (int i = 0; i < 8; ++i) simcuda::use(s, 1'000'000 * static_cast<std::uint64_t>(i + 1), at, mib);
  const std::uint64_t before = gpu.now_ns();
  EXPECT_LT(before, 1'000'000U) << "none of these had to wait";
  CUevent const e = event();
  ASSERT_EQ(cuEventRecord(e, s), CUDA_SUCCESS);
  EXPECT_GE(gpu.now_ns(), 1'000'000U) << "a record takes a place, too";
  ASSERT_EQ(cuStreamWaitEvent(s, e, 0), CUDA_SUCCESS);
  EXPECT_GE(gpu.now_ns(), 2'000'000U) << "and so does a wait";
  CUstream const other = stream();
  const std::uint64_t now = gpu.now_ns();
  ASSERT_EQ(cuEventRecord(e, other), CUDA_SUCCESS);
  EXPECT_LT(gpu.now_ns() - now, 100'000U) << "each stream has its own";
}

// Programming guide: work on the legacy default stream begins when all earlier work of the blocking streams is done,
// and later work of these begins when it is done.
TEST_F(Harsh, LegacyAndBlockingStreamsAreOrderedAndNonBlockingOnesAreNot) {
  CUstream const blocking = stream(CU_STREAM_DEFAULT);
  CUstream const free = stream(CU_STREAM_NON_BLOCKING);
  const CUdeviceptr at = memory();
  sim_device& gpu = simcuda::device(0);
  simcuda::use(blocking, 5'000'000, at, mib);
  CUevent const e = event();
  ASSERT_EQ(cuEventRecord(e, nullptr), CUDA_SUCCESS);
  EXPECT_EQ(cuEventQuery(e), CUDA_ERROR_NOT_READY) << "the legacy stream is behind it";
  ASSERT_EQ(cuEventRecord(e, free), CUDA_SUCCESS);
  EXPECT_EQ(cuEventQuery(e), CUDA_SUCCESS);
  simcuda::use(nullptr, 9'000'000, at, mib);
  ASSERT_EQ(cuEventRecord(e, blocking), CUDA_SUCCESS);
  ASSERT_EQ(cuEventSynchronize(e), CUDA_SUCCESS);
  EXPECT_GE(gpu.now_ns(), 9'000'000U) << "and the blocking one behind the legacy stream";
  EXPECT_EQ(gpu.hazard_count(), 0U);
}

// "This error indicates a disallowed implicit dependency on a current capture sequence from cudaStreamLegacy."
TEST_F(Harsh, TheLegacyStreamCannotBeUsedWhileABlockingStreamCaptures) {
  CUstream const blocking = stream(CU_STREAM_DEFAULT);
  CUstreamCaptureStatus now = CU_STREAM_CAPTURE_STATUS_NONE;
  ASSERT_EQ(cuStreamBeginCapture(blocking, CU_STREAM_CAPTURE_MODE_RELAXED), CUDA_SUCCESS);
  // "If this is called on CU_STREAM_LEGACY while a blocking stream in the same context is capturing, it will return
  // CUDA_ERROR_STREAM_CAPTURE_IMPLICIT. The blocking stream capture is not invalidated."
  EXPECT_EQ(cuStreamIsCapturing(nullptr, &now), CUDA_ERROR_STREAM_CAPTURE_IMPLICIT);
  EXPECT_EQ(status_of(blocking), CU_STREAM_CAPTURE_STATUS_ACTIVE);
  EXPECT_EQ(cuEventRecord(event(), nullptr), CUDA_ERROR_STREAM_CAPTURE_IMPLICIT);
  EXPECT_EQ(status_of(blocking), CU_STREAM_CAPTURE_STATUS_INVALIDATED);
  CUgraph graph = nullptr;
  EXPECT_EQ(cuStreamEndCapture(blocking, &graph), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
  EXPECT_EQ(graph, nullptr);
  EXPECT_EQ(status_of(blocking), CU_STREAM_CAPTURE_STATUS_NONE);
}

// "If the local thread has an ongoing capture sequence that was not initiated with RELAXED, or if any other thread has
// a concurrent capture sequence initiated with GLOBAL, this thread is prohibited from potentially unsafe API calls."
struct mode_case {
  CUstreamCaptureMode capture;
  CUstreamCaptureMode thread;
  bool same_thread;
  bool refused;
};
class HarshModes : public Harsh, public testing::WithParamInterface<mode_case> {};

TEST_P(HarshModes, ProhibitUnsafeCalls) {
  const mode_case& c = GetParam();
  CUstream const s = stream();
  ASSERT_EQ(cuStreamBeginCapture(s, c.capture), CUDA_SUCCESS);
  const auto call = [&] {
    ASSERT_EQ(cuCtxSetCurrent(context_), CUDA_SUCCESS);
    CUstreamCaptureMode mode = c.thread;
    ASSERT_EQ(cuThreadExchangeStreamCaptureMode(&mode), CUDA_SUCCESS);
    CUdeviceptr at = 0;
    EXPECT_EQ(cuMemAlloc(&at, mib), c.refused ? CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED : CUDA_SUCCESS);
    ASSERT_EQ(cuThreadExchangeStreamCaptureMode(&mode), CUDA_SUCCESS);
  };
  if (c.same_thread) {
    call();
  } else {
    std::thread{call}.join();
  }
  EXPECT_EQ(status_of(s), c.refused ? CU_STREAM_CAPTURE_STATUS_INVALIDATED : CU_STREAM_CAPTURE_STATUS_ACTIVE);
  CUgraph graph = nullptr;
  EXPECT_EQ(cuStreamEndCapture(s, &graph), c.refused ? CUDA_ERROR_STREAM_CAPTURE_INVALIDATED : CUDA_SUCCESS);
}

// A wait for a stream that takes part in no capture is one of these; for one that does it is refused in any mode.
TEST_P(HarshModes, ProhibitWaitsForOtherStreams) {
  const mode_case& c = GetParam();
  CUstream const s = stream();
  CUstream const other = stream();
  CUevent event = nullptr;
  ASSERT_EQ(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING), CUDA_SUCCESS);
  ASSERT_EQ(cuEventRecord(event, other), CUDA_SUCCESS);
  ASSERT_EQ(cuStreamBeginCapture(s, c.capture), CUDA_SUCCESS);
  const auto call = [&] {
    ASSERT_EQ(cuCtxSetCurrent(context_), CUDA_SUCCESS);
    CUstreamCaptureMode mode = c.thread;
    ASSERT_EQ(cuThreadExchangeStreamCaptureMode(&mode), CUDA_SUCCESS);
    const CUresult expected = c.refused ? CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED : CUDA_SUCCESS;
    EXPECT_EQ(cuStreamSynchronize(other), expected);
    EXPECT_EQ(cuEventSynchronize(event), expected);
    if (!c.refused) {
      EXPECT_EQ(status_of(s), CU_STREAM_CAPTURE_STATUS_ACTIVE);
      EXPECT_EQ(cuStreamSynchronize(s), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    }
    ASSERT_EQ(cuThreadExchangeStreamCaptureMode(&mode), CUDA_SUCCESS);
  };
  if (c.same_thread) {
    call();
  } else {
    std::thread{call}.join();
  }
  EXPECT_EQ(status_of(s), CU_STREAM_CAPTURE_STATUS_INVALIDATED);
  CUgraph graph = nullptr;
  EXPECT_EQ(cuStreamEndCapture(s, &graph), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
  EXPECT_EQ(cuEventDestroy(event), CUDA_SUCCESS);
}

constexpr CUstreamCaptureMode global = CU_STREAM_CAPTURE_MODE_GLOBAL;
constexpr CUstreamCaptureMode local = CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
constexpr CUstreamCaptureMode relaxed = CU_STREAM_CAPTURE_MODE_RELAXED;
INSTANTIATE_TEST_SUITE_P(Modes, HarshModes,
                         testing::Values(mode_case{global, global, true, true}, mode_case{global, global, false, true},
                                         mode_case{global, local, false, false}, mode_case{global, local, true, true},
                                         mode_case{global, relaxed, true, false}, mode_case{local, global, true, true},
                                         mode_case{local, global, false, false}, mode_case{local, local, true, true},
                                         mode_case{relaxed, global, true, false},
                                         mode_case{relaxed, global, false, false}));

// "A stream capture sequence not initiated with the CU_STREAM_CAPTURE_MODE_RELAXED argument to cuStreamBeginCapture was
// passed to cuStreamEndCapture in a different thread."
TEST_F(Harsh, OnlyARelaxedCaptureEndsInAnotherThread) {
  for (const CUstreamCaptureMode mode : {local, relaxed}) {
    CUstream const s = stream();
    ASSERT_EQ(cuStreamBeginCapture(s, mode), CUDA_SUCCESS);
    CUgraph graph = nullptr;
    std::thread{[&] {
      EXPECT_EQ(cuStreamEndCapture(s, &graph), mode == relaxed ? CUDA_SUCCESS : CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD);
    }}.join();
    if (mode != relaxed) {
      EXPECT_EQ(cuStreamEndCapture(s, &graph), CUDA_SUCCESS);
    }
  }
}

// "The API will return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED if the specified context hCtx has a stream in the capture
// mode. In such a case, the call will invalidate all the conflicting captures."
TEST_F(Harsh, AnEventOnTheContextInvalidatesItsCapturesInAnyMode) {
  CUstream const s = stream();
  ASSERT_EQ(cuStreamBeginCapture(s, relaxed), CUDA_SUCCESS);
  CUstreamCaptureMode mode = relaxed;
  ASSERT_EQ(cuThreadExchangeStreamCaptureMode(&mode), CUDA_SUCCESS);
  EXPECT_EQ(cuCtxRecordEvent(context_, event()), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
  ASSERT_EQ(cuThreadExchangeStreamCaptureMode(&mode), CUDA_SUCCESS);
  EXPECT_EQ(status_of(s), CU_STREAM_CAPTURE_STATUS_INVALIDATED);
  // "The capture sequence must be terminated with cuStreamEndCapture on the stream where it was initiated in order to
  // continue using hStream."
  EXPECT_EQ(cuLaunchHostFunc(
                s, [](void*) {}, nullptr),
            CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
  CUgraph graph = nullptr;
  EXPECT_EQ(cuStreamEndCapture(s, &graph), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
  EXPECT_EQ(cuLaunchHostFunc(
                s, [](void*) {}, nullptr),
            CUDA_SUCCESS);
}

// Seen on an H100, driver 580.159 (bench/results/h100); the documentation does not say so.
TEST_F(Harsh, TheIdAndTheFlagsOfACapturingStreamAreRefusedAndInvalidateTheCapture) {
  unsigned long long id = 0;
  unsigned int flags = 0;
  int priority = 0;
  CUcontext context = nullptr;
  const auto after = [&](CUstream s, CUresult answer, CUresult expected) {
    EXPECT_EQ(answer, expected);
    CUgraph graph = nullptr;
    EXPECT_EQ(cuStreamEndCapture(s, &graph),
              expected == CUDA_SUCCESS ? CUDA_SUCCESS : CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
  };
  for (const CUstreamCaptureMode mode : {global, relaxed}) {
    CUstream const s = stream();
    ASSERT_EQ(cuStreamBeginCapture(s, mode), CUDA_SUCCESS);
    after(s, cuStreamGetId(s, &id), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    ASSERT_EQ(cuStreamBeginCapture(s, mode), CUDA_SUCCESS);
    after(s, cuStreamGetFlags(s, &flags), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    ASSERT_EQ(cuStreamBeginCapture(s, mode), CUDA_SUCCESS);
    after(s, cuStreamGetPriority(s, &priority), CUDA_SUCCESS);
    ASSERT_EQ(cuStreamBeginCapture(s, mode), CUDA_SUCCESS);
    after(s, cuStreamGetCtx(s, &context), CUDA_SUCCESS);
  }
}

// "This error indicates that a dependency would have been created which crosses the capture sequence boundary."
TEST_F(Harsh, ACaptureCannotWaitForWorkOutside) {
  CUstream const s = stream();
  CUstream const other = stream();
  simcuda::use(other, 1'000'000, memory(), mib);
  CUevent const e = event();
  ASSERT_EQ(cuEventRecord(e, other), CUDA_SUCCESS);
  ASSERT_EQ(cuStreamBeginCapture(s, relaxed), CUDA_SUCCESS);
  EXPECT_EQ(cuStreamWaitEvent(s, e, 0), CUDA_ERROR_STREAM_CAPTURE_ISOLATION);
  CUgraph graph = nullptr;
  EXPECT_EQ(cuStreamEndCapture(s, &graph), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
}

// "The thread is still prohibited from API calls which necessarily conflict with stream capture, for example,
// attempting cuEventQuery on an event that was last recorded inside a capture sequence."
TEST_F(Harsh, ACapturedEventCannotBeQueriedInARelaxedThreadEither) {
  CUstream const s = stream();
  CUevent const e = event();
  ASSERT_EQ(cuStreamBeginCapture(s, relaxed), CUDA_SUCCESS);
  ASSERT_EQ(cuEventRecord(e, s), CUDA_SUCCESS);
  EXPECT_EQ(cuEventQuery(e), CUDA_ERROR_CAPTURED_EVENT);
  CUgraph graph = nullptr;
  EXPECT_EQ(cuStreamEndCapture(s, &graph), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
}

// CU_USER_OBJECT_NO_DESTRUCTOR_SYNC: "Indicates the destructor execution is not synchronized by any CUDA handle."
TEST_F(Harsh, AUserObjectDiesLaterAndOnAnotherThread) {
  static std::atomic<std::thread::id> died_on;
  died_on = std::thread::id{};
  CUuserObject object = nullptr;
  CUgraph graph = nullptr;
  CUstream const s = stream();
  ASSERT_EQ(
      cuUserObjectCreate(
          &object, nullptr, [](void*) { died_on = std::this_thread::get_id(); }, 1, CU_USER_OBJECT_NO_DESTRUCTOR_SYNC),
      CUDA_SUCCESS);
  ASSERT_EQ(cuStreamBeginCapture(s, relaxed), CUDA_SUCCESS);
  CUstreamCaptureStatus now = CU_STREAM_CAPTURE_STATUS_NONE;
  CUgraph inside = nullptr;
  cuuint64_t id = 0;
  ASSERT_EQ(cuStreamGetCaptureInfo_v2(s, &now, &id, &inside, nullptr, nullptr), CUDA_SUCCESS);
  ASSERT_EQ(cuGraphRetainUserObject(inside, object, 1, CU_GRAPH_USER_OBJECT_MOVE), CUDA_SUCCESS);
  ASSERT_EQ(cuStreamEndCapture(s, &graph), CUDA_SUCCESS);
  ASSERT_EQ(cuGraphDestroy(graph), CUDA_SUCCESS);
  EXPECT_EQ(died_on.load(), std::thread::id{}) << "not before the destroying call has returned";
  for (int i = 0; i < 4; ++i) static_cast<void>(status_of(s));
  EXPECT_NE(died_on.load(), std::thread::id{}) << "some calls later";
  EXPECT_NE(died_on.load(), std::this_thread::get_id());
}

// "The context is automatically reset once the last reference to it is released."
TEST_F(HarshDeathTest, APrimaryContextDiesWithItsLastReference) {
  CUstream const s = stream();
  static_cast<void>(memory(32 * mib));
  CUcontext again = nullptr;
  ASSERT_EQ(cuDevicePrimaryCtxRetain(&again, 0), CUDA_SUCCESS);
  EXPECT_EQ(simcuda::contexts_made(0), 1U);
  ASSERT_EQ(cuDevicePrimaryCtxRelease(0), CUDA_SUCCESS);
  EXPECT_EQ(simcuda::device(0).used_bytes(), 32 * mib) << "one reference is left";
  ASSERT_EQ(cuDevicePrimaryCtxRelease(0), CUDA_SUCCESS);
  EXPECT_EQ(simcuda::device(0).used_bytes(), 0U);
  EXPECT_DEATH(cuStreamQuery(s), "cuStreamQuery: a stream that is destroyed");
  unsigned int flags = 0;
  int active = 1;
  EXPECT_EQ(cuDevicePrimaryCtxGetState(0, &flags, &active), CUDA_SUCCESS);
  EXPECT_EQ(active, 0);
  ASSERT_EQ(cuDevicePrimaryCtxRetain(&again, 0), CUDA_SUCCESS);
  EXPECT_EQ(simcuda::contexts_made(0), 2U) << "which a card takes hundreds of milliseconds for";
}

// cuMemSetAccess: "Given the virtual address range via ptr and size, and the locations in the array given by desc and
// count, set the access flags for the target locations." cuCtxEnablePeerAccess does not reach such memory.
class HarshPeers : public Harsh, public testing::WithParamInterface<bool> {};

TEST_P(HarshPeers, MappedPagesAreReachedByThoseThatWereGivenAccess) {
  const bool given = GetParam();
  CUmemAllocationProp pages{};
  pages.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  pages.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = 0};
  CUdeviceptr at = 0;
  CUmemGenericAllocationHandle handle = 0;
  ASSERT_EQ(cuMemAddressReserve(&at, 4 * mib, 0, 0, 0), CUDA_SUCCESS);
  ASSERT_EQ(cuMemCreate(&handle, 4 * mib, &pages, 0), CUDA_SUCCESS);
  ASSERT_EQ(cuMemMap(at, 4 * mib, 0, handle, 0), CUDA_SUCCESS);
  CUmemAccessDesc access[2]{};
  for (int ordinal = 0; ordinal < 2; ++ordinal) {
    access[ordinal].location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    access[ordinal].location.id = ordinal;
    access[ordinal].flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
  }
  ASSERT_EQ(cuMemSetAccess(at, 4 * mib, access, given ? 2 : 1), CUDA_SUCCESS);
  CUcontext peer = nullptr;
  ASSERT_EQ(cuDevicePrimaryCtxRetain(&peer, 1), CUDA_SUCCESS);
  ASSERT_EQ(cuCtxSetCurrent(peer), CUDA_SUCCESS);
  ASSERT_EQ(cuCtxEnablePeerAccess(context_, 0), CUDA_SUCCESS);
  EXPECT_EQ(cuCtxEnablePeerAccess(context_, 0), CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED);
  unsigned long long flags = 0;
  ASSERT_EQ(cuMemGetAccess(&flags, &access[1].location, at + mib), CUDA_SUCCESS);
  EXPECT_EQ(flags, given ? CU_MEM_ACCESS_FLAGS_PROT_READWRITE : CU_MEM_ACCESS_FLAGS_PROT_NONE);
  EXPECT_EQ(cuMemsetD8Async(at, 1, mib, stream()), given ? CUDA_SUCCESS : CUDA_ERROR_ILLEGAL_ADDRESS);
  EXPECT_EQ(cuCtxSynchronize(), given ? CUDA_SUCCESS : CUDA_ERROR_ILLEGAL_ADDRESS);
}
INSTANTIATE_TEST_SUITE_P(Access, HarshPeers, testing::Bool());

// "A kernel needs peer access" to plain memory of another device.
TEST_F(Harsh, AKernelReachesPlainMemoryOfAPeerOnlyWherePeerAccessIsEnabled) {
  const CUdeviceptr at = memory();
  CUcontext peer = nullptr;
  ASSERT_EQ(cuDevicePrimaryCtxRetain(&peer, 1), CUDA_SUCCESS);
  ASSERT_EQ(cuCtxSetCurrent(peer), CUDA_SUCCESS);
  EXPECT_EQ(cuMemsetD8Async(at, 1, mib, stream()), CUDA_SUCCESS) << "a fill or copy may go by way of the host";
  simcuda::use(stream(), 1000, at, mib);
  EXPECT_EQ(cuCtxSynchronize(), CUDA_ERROR_ILLEGAL_ADDRESS);
}

// "This leaves the process in an inconsistent state and any further CUDA work will return the same error."
TEST_F(Harsh, AnErrorOfTheContextStays) {
  const CUdeviceptr at = memory();
  CUevent const e = event();
  CUstream const s = stream();
  simcuda::break_at("cuMemsetD8Async", 2, CUDA_ERROR_ILLEGAL_ADDRESS);
  EXPECT_EQ(cuMemsetD8Async(at, 1, 16, s), CUDA_SUCCESS);
  EXPECT_EQ(cuMemsetD8Async(at, 1, 16, s), CUDA_ERROR_ILLEGAL_ADDRESS);
  EXPECT_EQ(cuStreamQuery(s), CUDA_ERROR_ILLEGAL_ADDRESS);
  EXPECT_EQ(cuEventRecord(e, s), CUDA_ERROR_ILLEGAL_ADDRESS);
  EXPECT_EQ(cuMemFree(at), CUDA_ERROR_ILLEGAL_ADDRESS);
  CUcontext other = nullptr;
  ASSERT_EQ(cuDevicePrimaryCtxRetain(&other, 1), CUDA_SUCCESS);
  ASSERT_EQ(cuCtxSetCurrent(other), CUDA_SUCCESS);
  EXPECT_EQ(cuCtxSynchronize(), CUDA_SUCCESS) << "of the one context";
}

// cuCtxRecordEvent: "Captures in hEvent all the activities of the context hCtx at the time of this call": of no other
// one.
TEST_F(HarshDeathTest, AFurtherContextHasItsOwnStreamsAndItsMemoryGoesWithIt) {
  CUcontext second = nullptr;
  ASSERT_EQ(cuCtxCreate_v2(&second, 0, 0), CUDA_SUCCESS);
  ASSERT_NE(second, context_);
  CUstream const theirs = stream();
  const CUdeviceptr at = memory();
  simcuda::use(theirs, 50'000'000, at, mib);
  simcuda::use(nullptr, 60'000'000, at + mib, mib);
  ASSERT_EQ(cuCtxPopCurrent(nullptr), CUDA_SUCCESS);
  CUevent const e = event();
  ASSERT_EQ(cuCtxRecordEvent(context_, e), CUDA_SUCCESS);
  EXPECT_EQ(cuEventQuery(e), CUDA_SUCCESS) << "the other context's work is not behind it";
  EXPECT_EQ(cuEventRecord(e, theirs), CUDA_ERROR_INVALID_HANDLE);
  EXPECT_EQ(cuStreamQuery(nullptr), CUDA_SUCCESS) << "each context has its own legacy stream";
  EXPECT_EQ(simcuda::device(0).used_bytes(), 4 * mib);
  ASSERT_EQ(cuCtxDestroy(second), CUDA_SUCCESS);
  EXPECT_EQ(simcuda::device(0).used_bytes(), 0U);
  EXPECT_DEATH(cuStreamQuery(theirs), "cuStreamQuery: a stream that is destroyed");
}

}  // namespace
}  // namespace gpumem
