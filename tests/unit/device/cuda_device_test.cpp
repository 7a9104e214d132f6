// cuda_device over the double of the driver: its properties, and program actions that affect it.
#include "gpumem/cuda_device.hpp"

#include <cuda.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "bits.hpp"
#include "gpumem/allocator.hpp"
#include "simcuda.hpp"

namespace gpumem {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

constexpr std::uint64_t total = 512 * mib;

const cuda_driver* driver() {
  const auto found = resolve_cuda_driver(reinterpret_cast<void*>(&cuGetProcAddress));
  EXPECT_TRUE(found.ok()) << found.why().message();
  return *found;
}

class CudaDevice : public ::testing::Test {
 protected:
  void SetUp() override { simcuda::configure({.devices = 2, .bytes = total}); }
  void TearDown() override { EXPECT_EQ(cuCtxSetCurrent(nullptr), CUDA_SUCCESS); }

  static std::unique_ptr<device> open(cuda_config config = {}) {
    config.driver = driver();
    auto made = open_cuda_device(config);
    EXPECT_TRUE(made.ok()) << made.why().message();
    return made.ok() ? *std::move(made) : nullptr;
  }
  /// As in a program: its own context current, and its own stream.
  static CUstream program_stream() {
    static_cast<void>(driver());
    CUcontext context = nullptr;
    CUstream s = nullptr;
    EXPECT_EQ(cuDevicePrimaryCtxRetain(&context, 0), CUDA_SUCCESS);
    EXPECT_EQ(cuCtxSetCurrent(context), CUDA_SUCCESS);
    EXPECT_EQ(cuStreamCreate(&s, CU_STREAM_NON_BLOCKING), CUDA_SUCCESS);
    return s;
  }
};

TEST_F(CudaDevice, DescribesTheGpuAndTakesNoMemory) {
  const auto d = open({.ordinal = 1});
  EXPECT_EQ(d->info().ordinal, 1);
  EXPECT_THAT(d->info().name, StartsWith("simulated"));
  EXPECT_TRUE(d->info().simulated);
  EXPECT_THAT(d->info().uuid, StartsWith("GPU-"));
  EXPECT_EQ(d->info().uuid.size(), 40U);
  EXPECT_EQ(d->info().total_bytes, total);
  EXPECT_EQ(d->info().page_bytes, 2 * mib);
  EXPECT_TRUE(d->info().reports_captures);
  EXPECT_EQ(simcuda::calls("cuDevicePrimaryCtxRetain"), 0U);
  ASSERT_TRUE(d->alloc(2 * mib).ok());
  EXPECT_EQ(simcuda::calls("cuDevicePrimaryCtxRetain"), 1U);
}

TEST_F(CudaDevice, AnOrdinalOutOfRangeIsNamedWithTheRange) {
  for (const int ordinal : {-1, 2, 1000}) {
    const auto refused = open_cuda_device({.ordinal = ordinal, .driver = driver()});
    EXPECT_EQ(refused.code(), errc::wrong_device);
    EXPECT_THAT(refused.why().message(), HasSubstr(std::to_string(ordinal)));
    EXPECT_THAT(refused.why().message(), HasSubstr("expected 0 to 1"));
  }
}

TEST_F(CudaDevice, APeerMustBeAnotherDevice) {
  for (const int peer : {0, 2, -1}) {
    const auto refused = open_cuda_device({.ordinal = 0, .driver = driver(), .peers = {peer}});
    EXPECT_EQ(refused.code(), errc::wrong_device) << peer;
  }
  EXPECT_TRUE(open_cuda_device({.ordinal = 0, .driver = driver(), .peers = {1}}).ok());
}

TEST_F(CudaDevice, LeavesTheProgramsContextCurrent) {
  const auto d = open({.ordinal = 1});
  static_cast<void>(program_stream());
  CUcontext before = nullptr;
  CUcontext after = nullptr;
  ASSERT_EQ(cuCtxGetCurrent(&before), CUDA_SUCCESS);
  const auto segment = d->alloc(4 * mib);
  ASSERT_TRUE(segment.ok());
  EXPECT_TRUE(d->synchronize().ok());
  EXPECT_TRUE(d->free(*segment).ok());
  ASSERT_EQ(cuCtxGetCurrent(&after), CUDA_SUCCESS);
  EXPECT_EQ(before, after);
}

TEST_F(CudaDevice, OutOfMemoryNamesTheCallAndTheSize) {
  const auto d = open();
  const auto refused = d->alloc(2 * total);
  EXPECT_EQ(refused.code(), errc::out_of_memory);
  EXPECT_THAT(refused.why().message(), HasSubstr("cuMemAlloc of 1.00 GiB on device 0 failed"));
  EXPECT_THAT(refused.why().message(), HasSubstr("CUDA_ERROR_OUT_OF_MEMORY"));
}

// Every device call, with each driver function that it uses failing once: the status names the function and CUDA's
// error, the same call succeeds afterwards, and no memory is lost.
TEST_F(CudaDevice, EveryDriverErrorIsReportedAndLeavesTheStateIntact) {
  struct step {
    const char* function;
    std::function<status(device&)> call;
  };
  const auto s = stream_ref{program_stream()};
  const auto both = [](auto take, auto give) {
    return [=](device& d) -> status {
      const auto got = take(d);
      if (!got) return got.why();
      return give(d, *got);
    };
  };
  const auto plain = both([](device& d) { return d.alloc(4 * mib); },
                          [](device& d, address a) {
                            status done = d.free(a);
                            if (!done) {
                              EXPECT_TRUE(d.free(a).ok()) << "after a refused free the segment is still there";
                            }
                            return done;
                          });
  const auto pinned = both([](device& d) { return d.alloc_host(4 * mib); },
                           [](device& d, address a) {
                             status done = d.free_host(a);
                             if (!done) {
                               EXPECT_TRUE(d.free_host(a).ok());
                             }
                             return done;
                           });
  const auto mapped = [](device& d) -> status {
    const auto range = d.reserve(4 * mib);
    if (!range) return range.why();
    status first;
    const auto note = [&first](status one) {
      if (!one && first.ok()) first = one;
      return one.ok();
    };
    const auto pages = d.create(4 * mib);
    note(pages.why());
    if (pages.ok()) {
      if (note(d.map(*range, 4 * mib, *pages))) {
        note(d.set_access(*range, 4 * mib));
        if (!note(d.unmap(*range, 4 * mib))) {
          EXPECT_TRUE(d.unmap(*range, 4 * mib).ok());
        }
      }
      if (!note(d.destroy(*pages))) {
        EXPECT_TRUE(d.destroy(*pages).ok());
      }
    }
    if (!note(d.release_range(*range, 4 * mib))) {
      EXPECT_TRUE(d.release_range(*range, 4 * mib).ok());
    }
    return first;
  };
  const auto with_fence = [s](auto then) {
    return [=](device& d) -> status {
      const auto f = d.record(s);
      if (!f) return f.why();
      status done = then(d, *f);
      d.drop(*f);
      return done;
    };
  };
  const auto query = with_fence([](device& d, fence f) { return d.query(f).why(); });
  const auto wait_host = with_fence([](device& d, fence f) { return d.wait_host(f); });
  const auto wait_stream = with_fence([s](device& d, fence f) { return d.wait_stream(s, f); });
  const auto of_context = [](device& d) -> status {
    const auto f = d.record_context();
    if (f) d.drop(*f);
    return f.why();
  };
  const std::vector<step> steps{
      {"cuDevicePrimaryCtxRetain", plain},
      {"cuCtxGetId", plain},
      {"cuCtxPushCurrent", plain},
      {"cuMemAlloc", plain},
      {"cuMemFree", plain},
      {"cuMemHostAlloc", pinned},
      {"cuMemFreeHost", pinned},
      {"cuMemAddressReserve", mapped},
      {"cuMemCreate", mapped},
      {"cuMemMap", mapped},
      {"cuMemSetAccess", mapped},
      {"cuMemUnmap", mapped},
      {"cuMemRelease", mapped},
      {"cuMemAddressFree", mapped},
      {"cuMemGetInfo", [](device& d) { return d.memory().why(); }},
      {"cuEventCreate", query},
      {"cuEventRecord", query},
      {"cuEventQuery", query},
      {"cuEventSynchronize", wait_host},
      {"cuStreamWaitEvent", wait_stream},
      {"cuCtxRecordEvent", of_context},
      {"cuStreamGetId", [s](device& d) { return d.stream_id(s).why(); }},
      {"cuStreamGetCaptureInfo", [s](device& d) { return d.capture_id(s).why(); }},
      {"cuCtxSynchronize", [](device& d) { return d.synchronize(); }},
  };
  for (const step& one : steps) {
    ASSERT_EQ(cuCtxSetCurrent(nullptr), CUDA_SUCCESS);
    const auto d = open();
    simcuda::fail(one.function, 1, CUDA_ERROR_UNKNOWN);
    const status failed = one.call(*d);
    EXPECT_EQ(failed.code(), errc::device_error) << one.function;
    EXPECT_THAT(failed.message(), HasSubstr(one.function));
    EXPECT_THAT(failed.message(), HasSubstr("CUDA_ERROR_UNKNOWN"));
    const status good = one.call(*d);
    EXPECT_TRUE(good.ok()) << one.function << ": " << good.message();
    EXPECT_EQ(simcuda::device(0).used_bytes(), 0U) << one.function;
  }
}

TEST_F(CudaDevice, PagesAreMadeWithoutExportWhereThatIsRefused) {
  const auto d = open();
  simcuda::fail("cuMemCreate", 1, CUDA_ERROR_NOT_SUPPORTED);
  const auto pages = d->create(4 * mib);
  ASSERT_TRUE(pages.ok()) << pages.why().message();
  EXPECT_TRUE(d->destroy(*pages).ok());
}

TEST_F(CudaDevice, AResetIsNoticedAndFinal) {
  const auto d = open();
  ASSERT_TRUE(d->alloc(4 * mib).ok());
  ASSERT_EQ(cuDevicePrimaryCtxReset(0), CUDA_SUCCESS);
  const auto refused = d->alloc(4 * mib);
  EXPECT_EQ(refused.code(), errc::device_error);
  EXPECT_THAT(refused.why().message(), HasSubstr("was reset"));
  EXPECT_EQ(d->condition(), device_condition::reset);
  EXPECT_EQ(d->synchronize().code(), errc::device_error);
  const auto again = open();
  EXPECT_TRUE(again->alloc(4 * mib).ok()) << "a device that is opened anew works";
}

TEST_F(CudaDevice, AnAllocatorOfAResetDeviceRefusesAndCloses) {
  const auto d = open();
  device* const raw = d.get();
  auto a = allocator::open({&raw, 1}, settings{});
  ASSERT_TRUE(a.ok());
  void* const p = (*a)->allocate(1 * mib);
  ASSERT_EQ(cuDevicePrimaryCtxReset(0), CUDA_SUCCESS);
  oom_report report;
  EXPECT_FALSE((*a)->try_allocate({.bytes = 64 * mib}, &report).ok());
  const auto refused = (*a)->try_allocate({.bytes = 64 * mib});
  EXPECT_EQ(refused.code(), errc::device_error);
  EXPECT_THAT(refused.why().message(), HasSubstr("open a new allocator"));
  EXPECT_EQ((*a)->try_deallocate(p).code(), errc::device_error);
}

TEST_F(CudaDevice, AForkedChildGetsAClearError) {
  const auto d = open();
  device* const raw = d.get();
  auto a = allocator::open({&raw, 1}, settings{});
  ASSERT_TRUE(a.ok());
  void* const p = (*a)->allocate(1 * mib);
  int said[2];
  ASSERT_EQ(pipe(said), 0);
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    const status taken = (*a)->try_allocate({.bytes = 512}).why();
    const status freed = (*a)->try_deallocate(p);
    const std::string text = taken.message() + "\n" + freed.message() + "\n";
    _exit(write(said[1], text.data(), text.size()) == static_cast<ssize_t>(text.size()) ? 0 : 1);
  }
  close(said[1]);
  std::string text(4096, '\0');
  const ssize_t bytes = read(said[0], text.data(), text.size());
  close(said[0]);
  int ended = 0;
  ASSERT_EQ(waitpid(child, &ended, 0), child);
  EXPECT_EQ(ended, 0);
  ASSERT_GT(bytes, 0);
  text.resize(static_cast<std::size_t>(bytes));
  EXPECT_THAT(text, HasSubstr("forked"));
  EXPECT_EQ(text.find("forked") < text.find('\n'), true) << text;
  EXPECT_TRUE((*a)->try_deallocate(p).ok()) << "the parent goes on";
}

TEST_F(CudaDevice, TwoDevicesDoNotMix) {
  const auto first = open({.ordinal = 0});
  const auto second = open({.ordinal = 1});
  std::vector<device*> both{first.get(), second.get()};
  auto a = allocator::open(both, settings{});
  ASSERT_TRUE(a.ok()) << a.why().message();
  void* const p = (*a)->allocate({.bytes = 4 * mib, .device = 0});
  void* const q = (*a)->allocate({.bytes = 4 * mib, .device = 1});
  EXPECT_GT(simcuda::device(0).used_bytes(), 0U);
  EXPECT_GT(simcuda::device(1).used_bytes(), 0U);
  EXPECT_EQ((*a)->try_deallocate(q, {.device = 0}).code(), errc::wrong_device);
  EXPECT_TRUE((*a)->try_deallocate(q, {.device = 1}).ok());
  EXPECT_TRUE((*a)->try_deallocate(p).ok());
}

TEST_F(CudaDevice, MemoryTakenByOthersBetweenQueryAndAllocation) {
  const auto d = open();
  device* const raw = d.get();
  settings with;
  with.policy = "grab_all";
  auto a = allocator::open({&raw, 1}, with);
  ASSERT_TRUE(a.ok()) << a.why().message();
  simcuda::device(0).set_foreign_bytes(total - 64 * mib);  // after the free memory was asked for
  void* const p = (*a)->allocate(8 * mib);
  EXPECT_NE(p, nullptr);
  EXPECT_FALSE((*a)->try_allocate({.bytes = 256 * mib}).ok());
  EXPECT_TRUE((*a)->check(0).ok());
  (*a)->deallocate(p);
}

TEST_F(CudaDevice, AReusedHandleIsANewStream) {
  const auto d = open();
  CUstream first = program_stream();
  const auto id = d->stream_id({first});
  ASSERT_TRUE(id.ok());
  ASSERT_EQ(cuStreamDestroy(first), CUDA_SUCCESS);
  CUstream second = nullptr;
  ASSERT_EQ(cuStreamCreate(&second, CU_STREAM_NON_BLOCKING), CUDA_SUCCESS);
  ASSERT_EQ(first, second) << "the double gives a handle out again";
  EXPECT_NE(*d->stream_id({second}), *id);
}

TEST_F(CudaDevice, ThePerThreadStreamIsAnotherInEachThread) {
  const auto d = open();
  const auto here = d->stream_id(per_thread_stream);
  result<std::uint64_t> there{std::uint64_t{0}};
  std::thread{[&] { there = d->stream_id(per_thread_stream); }}.join();
  ASSERT_TRUE(here.ok()) << here.why().message();
  ASSERT_TRUE(there.ok()) << there.why().message();
  EXPECT_NE(*here, *there);
}

TEST_F(CudaDevice, WithoutEventsOnAContextAFenceStandsForASynchronise) {
  simcuda::configure({.devices = 1, .bytes = total, .driver_version = 12040});
  const auto d = open();
  const stream_ref s{program_stream()};
  const auto segment = d->alloc(4 * mib);
  simcuda::use(static_cast<CUstream>(s.handle), 1'000'000, *segment, 4 * mib);
  const auto f = d->record_context();
  ASSERT_TRUE(f.ok()) << f.why().message();
  EXPECT_FALSE(*d->query(*f));
  EXPECT_EQ(d->wait_stream(s, *f).code(), errc::unsupported);
  EXPECT_THAT(d->wait_stream(s, *f).message(), HasSubstr("12.4"));
  EXPECT_TRUE(d->wait_host(*f).ok());
  EXPECT_TRUE(*d->query(*f));
  EXPECT_TRUE(d->wait_stream(s, *f).ok());
  const auto later = d->record_context();
  EXPECT_FALSE(*d->query(*later)) << "what came after the synchronise is not covered by it";
  d->drop(*later);
}

}  // namespace
}  // namespace gpumem
