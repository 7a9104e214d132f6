// Makes each driver call of the preloaded library fail once, in a process of its own: from the first allocation, which
// opens everything, through a capture, during which it serves other streams, to the last free.
#include <cuda.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <string>
#include <string_view>
#include <vector>

#include "preload/world.hpp"

namespace gpumem::preload_test {
namespace {

constexpr std::size_t mib = std::size_t{1} << 20;

class FailingStart : public testing::TestWithParam<const char*> {
 protected:
  void SetUp() override { ASSERT_TRUE(preloaded()) << "run by ctest, which sets LD_PRELOAD and GPUMEM_CUDA_DRIVER"; }
};

/// Prints an error and returns 1.
int wrong(const char* what, int code) {
  std::printf("%s: %d\n", what, code);
  return 1;
}

#define NEEDS_SUCCESS(call) \
  if (const int e = static_cast<int>(call); e != CUDA_SUCCESS) return wrong(#call, e)

/// Runs in a process of its own. Returns 0 if all is as expected, 1 if not, 2 if there was no n-th call to fail.
int program(unsigned nth) {
  const auto pause = of_double<void(int)>("simcuda_pause_failures");
  pause(1);
  const auto alloc = of_driver<CUresult(CUdeviceptr*, std::size_t)>("cuMemAlloc_v2");
  const auto free = of_driver<CUresult(CUdeviceptr)>("cuMemFree_v2");
  const auto alloc_async = of_driver<CUresult(CUdeviceptr*, std::size_t, CUstream)>("cuMemAllocAsync");
  const auto free_async = of_driver<CUresult(CUdeviceptr, CUstream)>("cuMemFreeAsync");
  const auto new_stream = of_driver<CUresult(CUstream*, unsigned)>("cuStreamCreate");
  CUcontext context = nullptr;
  NEEDS_SUCCESS(of_driver<CUresult(unsigned)>("cuInit")(0));
  NEEDS_SUCCESS(of_driver<CUresult(CUcontext*, CUdevice)>("cuDevicePrimaryCtxRetain")(&context, 0));
  NEEDS_SUCCESS(of_driver<CUresult(CUcontext)>("cuCtxSetCurrent")(context));
  CUstream s = nullptr;
  CUstream other = nullptr;
  NEEDS_SUCCESS(new_stream(&s, CU_STREAM_NON_BLOCKING));
  NEEDS_SUCCESS(new_stream(&other, CU_STREAM_NON_BLOCKING));
  of_double<void(const char*, unsigned, int)>("simcuda_fail")("*", nth, CUDA_ERROR_UNKNOWN);
  // Repeats a call that failed, as a program would.
  const auto tried = [&](const auto& call) {
    pause(0);
    CUresult e = call();
    if (e != CUDA_SUCCESS) e = call();
    pause(1);
    return e;
  };
  std::array<CUdeviceptr, 18> blocks{};
  for (CUdeviceptr& p : blocks) NEEDS_SUCCESS(tried([&] { return alloc(&p, mib); }));
  NEEDS_SUCCESS(of_driver<CUresult(CUstream, CUstreamCaptureMode)>("cuStreamBeginCapture_v2")(
      s, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
  CUdeviceptr in_capture = 0;
  CUdeviceptr beside = 0;
  NEEDS_SUCCESS(alloc_async(&in_capture, mib, s));
  NEEDS_SUCCESS(free_async(in_capture, s));
  NEEDS_SUCCESS(tried([&] { return alloc_async(&beside, mib, other); }));
  NEEDS_SUCCESS(tried([&] { return free_async(beside, other); }));
  CUgraph graph = nullptr;
  NEEDS_SUCCESS(of_driver<CUresult(CUstream, CUgraph*)>("cuStreamEndCapture")(s, &graph));
  for (const CUdeviceptr p : blocks) NEEDS_SUCCESS(tried([&] { return free(p); }));
  NEEDS_SUCCESS(tried([&] { return alloc(&beside, 20 * mib); }));
  NEEDS_SUCCESS(tried([&] { return free(beside); }));
  if (hazards() != 0) return wrong("hazards", 1);
  return of_double<int()>("simcuda_failure_planned")() != 0 ? 2 : 0;
}

struct outcome {
  int code = 0;
  std::string said;
};

outcome run_apart(unsigned nth) {
  std::array<int, 2> ends{};
  if (::pipe(ends.data()) != 0) return {1, "no pipe"};
  const pid_t child = ::fork();
  if (child == 0) {
    ::dup2(ends[1], STDOUT_FILENO);
    ::dup2(ends[1], STDERR_FILENO);
    ::close(ends[0]);
    const int code = program(nth);
    std::fflush(nullptr);
    ::_exit(code);
  }
  ::close(ends[1]);
  outcome out;
  std::array<char, 4096> piece{};
  for (ssize_t n = 0; (n = ::read(ends[0], piece.data(), piece.size())) > 0;) {
    out.said.append(piece.data(), static_cast<std::size_t>(n));
  }
  ::close(ends[0]);
  int how = 0;
  ::waitpid(child, &how, 0);
  out.code = WIFEXITED(how) ? WEXITSTATUS(how) : 128 + WTERMSIG(how);
  return out;
}

TEST_P(FailingStart, TheProgramGoesOnWhicheverCallFails) {
  setenv("SIMCUDA_BYTES", "1GiB", 1);
  setenv("SIMCUDA_HOST_MEMORY", "0", 1);
  setenv("GPUMEM_POLICY", GetParam(), 1);
  unsigned failed = 0;
  unsigned told = 0;
  for (unsigned nth = 1; nth < 2000; ++nth) {
    const outcome run = run_apart(nth);
    ASSERT_TRUE(run.code == 0 || run.code == 2) << "call " << nth << ": " << run.code << '\n' << run.said;
    if (run.code == 2) break;
    ++failed;
    if (run.said.empty()) continue;
    ++told;
    EXPECT_NE(run.said.find("cu"), std::string::npos) << "call " << nth << ": names no call: " << run.said;
  }
  EXPECT_GT(failed, 40U) << "calls that failed, one a process";
  EXPECT_GT(told, 5U) << "of which so many left the device to the driver, and said why";
}
INSTANTIATE_TEST_SUITE_P(Policies, FailingStart, testing::Values("growth", "expandable"),
                         [](const auto& i) { return std::string{i.param}; });

}  // namespace
}  // namespace gpumem::preload_test
