// The driver calls of each entry point for an allocation and a free that a thread's cache serves. Golden figures, on
// the simulated driver, loaded as this process's driver. preload_test.cpp has those of preloaded programs.
#include <dlfcn.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <cstdlib>
#include <functional>

#include "gpumem/default_allocator.hpp"
#include "gpumem/gpumem.h"

extern "C" {
void* gpumem_torch_alloc(std::ptrdiff_t bytes, int device, void* stream);
void gpumem_torch_free(void* p, std::ptrdiff_t bytes, int device, void* stream);
void* gpumem_cupy_malloc(void* param, std::size_t bytes, int device);
void gpumem_cupy_free(void* param, void* p, int device);
}

namespace gpumem::reality {
namespace {

constexpr std::size_t bytes = 4096;
constexpr std::uint64_t pairs = 16;

struct entry_point {
  const char* name;
  std::function<void*(void* stream)> allocate;
  std::function<void(void* block, void* stream)> free;
  std::uint64_t calls_a_pair;  ///< on a created stream: its id, and whether it captures
};

gpumem_allocator* of_c() {
  gpumem_allocator* out = nullptr;
  EXPECT_EQ(gpumem_default(&out), GPUMEM_OK);
  return out;
}

const std::vector<entry_point>& entry_points() {
  static const std::vector<entry_point> all{
      {"cpp", [](void* s) { return (*default_allocator())->allocate(bytes, {s}); },
       [](void* p, void*) { (*default_allocator())->deallocate(p); }, 2},
      {"cpp_stated", [](void* s) { return (*default_allocator())->allocate(bytes, {s}); },
       [](void* p, void* s) { (*default_allocator())->deallocate(p, {.stream = stream_ref{s}, .bytes = bytes}); }, 2},
      {"c",
       [](void* s) {
         void* p = nullptr;
         EXPECT_EQ(gpumem_allocate(of_c(), bytes, 0, s, &p), GPUMEM_OK);
         return p;
       },
       [](void* p, void*) { EXPECT_EQ(gpumem_free(of_c(), p), GPUMEM_OK); }, 2},
      {"torch", [](void* s) { return gpumem_torch_alloc(bytes, 0, s); },
       [](void* p, void* s) { gpumem_torch_free(p, bytes, 0, s); }, 2},
      {"cupy", [](void* s) { return gpumem_cupy_malloc(s, bytes, 0); },
       [](void* p, void* s) { gpumem_cupy_free(s, p, 0); }, 2},
  };
  return all;
}

template <typename Function>
Function of_driver(const char* name) {
  static void* const driver = dlopen(GPUMEM_TEST_DRIVER, RTLD_NOW | RTLD_GLOBAL);
  return reinterpret_cast<Function>(dlsym(driver, name));
}
std::uint64_t calls() { return of_driver<std::uint64_t (*)(const char*)>("simcuda_calls")(nullptr); }

class EntryPoints : public testing::TestWithParam<std::size_t> {
 protected:
  static void SetUpTestSuite() {
    setenv("GPUMEM_CUDA_DRIVER", GPUMEM_TEST_DRIVER, 1);
    setenv("SIMCUDA_BYTES", "256MiB", 1);
    setenv("SIMCUDA_HOST_MEMORY", "0", 1);
  }
  static void* stream() {
    void* context = nullptr;
    EXPECT_EQ(of_driver<int (*)(void**, int)>("cuDevicePrimaryCtxRetain")(&context, 0), 0);
    EXPECT_EQ(of_driver<int (*)(void*)>("cuCtxSetCurrent")(context), 0);
    void* made = nullptr;
    EXPECT_EQ(of_driver<int (*)(void**, unsigned)>("cuStreamCreate")(&made, 1), 0);
    return made;
  }
  /// Driver calls of the allocations, and of the frees, in a number of pairs that a cache serves.
  static std::pair<std::uint64_t, std::uint64_t> counted(const entry_point& by, void* on) {
    for (int i = 0; i < 2; ++i) by.free(by.allocate(on), on);
    std::pair<std::uint64_t, std::uint64_t> out;
    for (std::uint64_t i = 0; i < pairs; ++i) {
      const std::uint64_t before = calls();
      void* const p = by.allocate(on);
      const std::uint64_t between = calls();
      by.free(p, on);
      out.first += between - before;
      out.second += calls() - between;
    }
    return out;
  }
};

TEST_P(EntryPoints, AskTheDriverNoMoreThanThis) {
  const entry_point& by = entry_points().at(GetParam());
  ASSERT_TRUE(default_allocator().ok()) << default_allocator().why().message();
  by.free(by.allocate(nullptr), nullptr);
  EXPECT_EQ(counted(by, nullptr), (std::pair<std::uint64_t, std::uint64_t>{0, 0})) << "the default stream";
  const auto [allocations, frees] = counted(by, stream());
  EXPECT_GE(allocations, by.calls_a_pair * pairs);
  // A second stream is known, so one batch of frees gets a fence: calls query the stream's capture, and create and
  // record the event in the device's context. Before the driver is asked about a stream, its capture is queried again.
  EXPECT_LE(allocations + frees, by.calls_a_pair * pairs + 10) << "a created stream: its id and its capture";
}
INSTANTIATE_TEST_SUITE_P(Every, EntryPoints, testing::Range(std::size_t{0}, std::size_t{5}),
                         [](const auto& i) { return std::string{entry_points().at(i.param).name}; });

}  // namespace
}  // namespace gpumem::reality
