// The fixture, the kernels and the program. Without a driver or a GPU it says so and exits with 77 (skipped).
#include <dlfcn.h>

#include <cstdio>
#include <cstdlib>
#include <random>

#include "gpu_test.hpp"

namespace gpumem::gpu_test {
namespace {

__global__ void spin_kernel(long long clocks) {
  const long long begin = clock64();
  while (clock64() - begin < clocks) {
  }
}

__global__ void write_kernel(unsigned* at, std::size_t words, unsigned pattern) {
  const std::size_t stride = gridDim.x * std::size_t{blockDim.x};
  for (std::size_t i = blockIdx.x * std::size_t{blockDim.x} + threadIdx.x; i < words; i += stride) {
    at[i] = pattern + static_cast<unsigned>(i);
  }
}

__global__ void check_kernel(const unsigned* at, std::size_t words, unsigned pattern, unsigned* wrong) {
  const std::size_t stride = gridDim.x * std::size_t{blockDim.x};
  for (std::size_t i = blockIdx.x * std::size_t{blockDim.x} + threadIdx.x; i < words; i += stride) {
    if (at[i] != pattern + static_cast<unsigned>(i)) atomicAdd(wrong, 1U);
  }
}

/// The referee functions exported by the double of the driver (simcuda/control.h); empty with any other driver.
struct referee {
  void (*use)(void*, std::uint64_t, std::uint64_t, std::uint64_t) = nullptr;
  void (*handed_out)(std::uint64_t, std::uint64_t, void*) = nullptr;
  void (*given_back)(std::uint64_t) = nullptr;
  std::uint64_t (*hazards)() = nullptr;
};

const referee& the_referee() {
  static const referee found = [] {
    referee r;
    void* const driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    if (driver == nullptr || dlsym(driver, "simcuda_use") == nullptr) return r;
    r.use = reinterpret_cast<decltype(r.use)>(dlsym(driver, "simcuda_use"));
    r.handed_out = reinterpret_cast<decltype(r.handed_out)>(dlsym(driver, "simcuda_handed_out"));
    r.given_back = reinterpret_cast<decltype(r.given_back)>(dlsym(driver, "simcuda_given_back"));
    r.hazards = reinterpret_cast<decltype(r.hazards)>(dlsym(driver, "simcuda_hazards"));
    return r;
  }();
  return found;
}

std::uint64_t number(const void* p) { return reinterpret_cast<std::uintptr_t>(p); }

constexpr std::uint64_t kernel_ns = 500'000;

}  // namespace

int ordinal() {
  const char* const named = std::getenv("GPUMEM_TEST_DEVICE");
  return named == nullptr ? 0 : std::atoi(named);
}

bool simulated() { return the_referee().use != nullptr; }

void Gpu::SetUp() {
  CUDA_OK(cudaSetDevice(ordinal()));
  CUDA_OK(cudaMalloc(&wrong_, sizeof *wrong_));
  CUDA_OK(cudaMemset(wrong_, 0, sizeof *wrong_));
  CUDA_OK(cudaDeviceSynchronize());  // non-blocking streams do not wait for that
  auto opened = open_cuda_device({.ordinal = ordinal()});
  ASSERT_TRUE(opened.ok()) << opened.why().message();
  device_ = *std::move(opened);
}

void Gpu::TearDown() {
  EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
  unsigned wrong = 0;
  EXPECT_EQ(cudaMemcpy(&wrong, wrong_, sizeof wrong, cudaMemcpyDeviceToHost), cudaSuccess);
  EXPECT_EQ(wrong, 0U) << "words that somebody else had written over";
  if (simulated()) EXPECT_EQ(the_referee().hazards(), 0U);
  if (allocator_ != nullptr) {
    for (const logical_device& d : allocator_->devices()) {
      const status sound = allocator_->check(d.ordinal);
      EXPECT_TRUE(sound.ok()) << sound.message();
    }
  }
  allocator_.reset();
  device_.reset();
  for (cudaStream_t s : streams_) EXPECT_EQ(cudaStreamDestroy(s), cudaSuccess);
  EXPECT_EQ(cudaFree(wrong_), cudaSuccess);
}

void Gpu::open(const std::vector<std::pair<std::string, std::string>>& options) {
  settings with;
  for (const auto& [option, value] : options) ASSERT_TRUE(with.set(option, value).ok()) << option << '=' << value;
  device* const on = device_.get();
  auto opened = allocator::open({&on, 1}, with);
  ASSERT_TRUE(opened.ok()) << opened.why().message();
  allocator_ = *std::move(opened);
}

cudaStream_t Gpu::stream() {
  cudaStream_t s = nullptr;
  EXPECT_EQ(cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking), cudaSuccess);
  streams_.push_back(s);
  return s;
}

result<void*> Gpu::take(std::uint64_t bytes, cudaStream_t s, oom_report* report) {
  result<void*> got = allocator_->try_allocate({.bytes = bytes, .stream = {s}}, report);
  if (got.ok() && simulated()) the_referee().handed_out(number(*got), bytes, s);
  return got;
}

status Gpu::give(void* p) {
  if (simulated()) the_referee().given_back(number(p));
  return allocator_->try_deallocate(p);
}

void Gpu::spin(long long clocks, cudaStream_t s) { spin_kernel<<<1, 1, 0, s>>>(clocks); }

void Gpu::write(void* p, std::uint64_t bytes, unsigned pattern, cudaStream_t s) {
  write_kernel<<<64, 256, 0, s>>>(static_cast<unsigned*>(p), bytes / sizeof(unsigned), pattern);
  EXPECT_EQ(cudaGetLastError(), cudaSuccess);
  if (simulated()) the_referee().use(s, kernel_ns, number(p), bytes);
}

void Gpu::check(const void* p, std::uint64_t bytes, unsigned pattern, cudaStream_t s) {
  if (simulated()) {  // the pattern was not written
    the_referee().use(s, kernel_ns, number(p), bytes);
    return;
  }
  check_kernel<<<64, 256, 0, s>>>(static_cast<const unsigned*>(p), bytes / sizeof(unsigned), pattern, wrong_);
  EXPECT_EQ(cudaGetLastError(), cudaSuccess);
}

void Gpu::churn(const std::vector<cudaStream_t>& streams, unsigned seed, int operations) {
  struct block {
    void* p;
    std::uint64_t bytes;
    unsigned pattern;
    cudaStream_t on;
  };
  constexpr std::size_t most_live = 24;
  std::mt19937 random{seed};
  std::vector<block> live;
  for (int i = 0; i < operations; ++i) {
    if (live.size() < most_live && random() % 3 != 0) {
      cudaStream_t s = streams[random() % streams.size()];
      const std::uint64_t bytes = 4 * (1 + random() % (2 * mib));
      const result<void*> got = take(bytes, s);
      ASSERT_TRUE(got.ok()) << got.why().message();
      const block b{*got, bytes, static_cast<unsigned>(random()), s};
      if (random() % 8 == 0) spin(2'000'000, s);
      write(b.p, b.bytes, b.pattern, s);
      live.push_back(b);
    } else if (!live.empty()) {
      std::swap(live[random() % live.size()], live.back());
      const block b = live.back();
      live.pop_back();
      cudaStream_t other = streams[random() % streams.size()];
      if (random() % 4 == 0 && other != b.on) {
        cudaEvent_t written = nullptr;
        CUDA_OK(cudaEventCreateWithFlags(&written, cudaEventDisableTiming));
        CUDA_OK(cudaEventRecord(written, b.on));
        CUDA_OK(cudaStreamWaitEvent(other, written, 0));
        CUDA_OK(cudaEventDestroy(written));
        ASSERT_TRUE(allocator_->record_use(b.p, {other}).ok());
        spin(1'000'000, other);
        check(b.p, b.bytes, b.pattern, other);
      }
      check(b.p, b.bytes, b.pattern, b.on);
      ASSERT_TRUE(give(b.p).ok());
    }
  }
  for (const block& b : live) {
    check(b.p, b.bytes, b.pattern, b.on);
    ASSERT_TRUE(give(b.p).ok());
  }
}

}  // namespace gpumem::gpu_test

int main(int argc, char** argv) {
  ::testing::InitGoogleTest(&argc, argv);
  if (::testing::GTEST_FLAG(list_tests)) return RUN_ALL_TESTS();
  const auto opened = gpumem::open_cuda_device({.ordinal = gpumem::gpu_test::ordinal()});
  if (!opened) {
    std::printf("skipped: %s\n", opened.why().message().c_str());
    return 77;
  }
  return RUN_ALL_TESTS();
}
