// CUB's caching allocator on several threads and streams, as any program uses it: plain C++, no kernel.
#include <cuda_runtime.h>

#include <cstdio>
#include <cub/util_allocator.cuh>
#include <thread>
#include <vector>

namespace {

bool failed(cudaError_t e, const char* what) {
  if (e == cudaSuccess) return false;
  std::fprintf(stderr, "%s: %s\n", what, cudaGetErrorString(e));
  return true;
}

void work(cub::CachingDeviceAllocator& allocator, unsigned seed, bool& good) {
  cudaStream_t stream = nullptr;
  if (failed(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "cudaStreamCreateWithFlags")) return;
  for (unsigned i = 0; i < 500; ++i) {
    void* block = nullptr;
    const std::size_t bytes = std::size_t{1} << (8 + (seed + i * 7) % 12);
    if (failed(allocator.DeviceAllocate(&block, bytes, stream), "DeviceAllocate")) return;
    if (failed(cudaMemsetAsync(block, static_cast<int>(i), bytes, stream), "cudaMemsetAsync")) return;
    unsigned char last = 0;
    if (failed(cudaMemcpyAsync(&last, static_cast<char*>(block) + bytes - 1, 1, cudaMemcpyDeviceToHost, stream),
               "cudaMemcpyAsync")) {
      return;
    }
    if (failed(cudaStreamSynchronize(stream), "cudaStreamSynchronize")) return;
    if (last != static_cast<unsigned char>(i)) return;
    if (failed(allocator.DeviceFree(block), "DeviceFree")) return;
  }
  good = !failed(cudaStreamDestroy(stream), "cudaStreamDestroy");
}

}  // namespace

int main() {
  cub::CachingDeviceAllocator allocator{2, 3, 12};
  bool good[4] = {};
  std::vector<std::thread> threads;
  for (unsigned i = 0; i < 4; ++i) threads.emplace_back([&, i] { work(allocator, i, good[i]); });
  for (std::thread& t : threads) t.join();
  for (const bool g : good) {
    if (!g) return 1;
  }
  if (allocator.live_blocks.size() != 0 || allocator.cached_blocks.size() == 0) return 2;
  if (failed(allocator.FreeAllCached(), "FreeAllCached")) return 3;
  std::size_t free_bytes = 0;
  std::size_t total_bytes = 0;
  if (failed(cudaMemGetInfo(&free_bytes, &total_bytes), "cudaMemGetInfo")) return 4;
  std::puts(free_bytes == total_bytes ? "all went back" : "something is left");
  return free_bytes == total_bytes ? 0 : 5;
}
