// A program of the CUDA runtime that is linked with the shim; prints "as expected" if every step was.
#include <cuda_runtime.h>

#include <cstdio>

#include "world.hpp"

namespace {

/// Frees at process exit, as static objects of libraries do; the runtime may be unloaded by then.
struct late {
  void* block = nullptr;
  ~late() { static_cast<void>(cudaFree(block)); }
};
late at_exit;

bool differs(cudaError_t got, cudaError_t expected, const char* what) {
  if (got == expected) return false;
  std::fprintf(stderr, "%s: %s, expected %s\n", what, cudaGetErrorString(got), cudaGetErrorString(expected));
  return true;
}

/// Uses a different stream each time, while the previous one still works on the block.
bool is_reused_too_early() {
  for (std::size_t i = 0; i < 60; ++i) {
    const std::size_t bytes = (1 + i % 3) << 22U;
    cudaStream_t on = nullptr;
    void* p = nullptr;
    if (differs(cudaStreamCreateWithFlags(&on, cudaStreamNonBlocking), cudaSuccess, "cudaStreamCreate")) return true;
    if (differs(cudaMalloc(&p, bytes), cudaSuccess, "cudaMalloc")) return true;
    gpumem::preload_test::handed_out(p, bytes, on);
    gpumem::preload_test::use(on, 5'000'000, p, bytes);
    gpumem::preload_test::given_back(p);
    if (differs(cudaFree(p), cudaSuccess, "cudaFree")) return true;
  }
  return gpumem::preload_test::hazards() != 0;
}

}  // namespace

int main() {
  if (is_reused_too_early()) return std::fputs("freed memory was reused while a stream worked on it\n", stderr), 17;
  int* blocks[100];
  for (int*& p : blocks) {
    if (differs(cudaMalloc(reinterpret_cast<void**>(&p), 4096), cudaSuccess, "cudaMalloc")) return 1;
  }
  cudaStream_t s = nullptr;
  if (differs(cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking), cudaSuccess, "cudaStreamCreate")) return 2;
  void* p = nullptr;
  if (differs(cudaMallocAsync(&p, 4096, s), cudaSuccess, "cudaMallocAsync")) return 3;
  if (differs(cudaStreamBeginCapture(s, cudaStreamCaptureModeGlobal), cudaSuccess, "cudaStreamBeginCapture")) return 4;
  if (differs(cudaFree(blocks[0]), cudaSuccess, "cudaFree while something captures")) return 5;
  cudaGraph_t graph = nullptr;
  if (differs(cudaStreamEndCapture(s, &graph), cudaSuccess, "cudaStreamEndCapture")) return 6;
  if (differs(cudaFreeAsync(p, s), cudaSuccess, "cudaFreeAsync")) return 7;
  std::size_t free_bytes = 0;
  std::size_t total_bytes = 0;
  if (differs(cudaMemGetInfo(&free_bytes, &total_bytes), cudaSuccess, "cudaMemGetInfo")) return 8;
  if (free_bytes > (std::size_t{1} << 30)) return std::fputs("the limit is not seen\n", stderr), 9;
  if (differs(cudaMalloc(&p, std::size_t{2} << 30), cudaErrorMemoryAllocation, "too much")) return 10;
  if (differs(cudaGetLastError(), cudaErrorMemoryAllocation, "cudaGetLastError")) return 11;
  void* managed = nullptr;
  if (differs(cudaMallocManaged(&managed, 4096), cudaSuccess, "cudaMallocManaged")) return 12;
  if (differs(cudaFree(managed), cudaSuccess, "cudaFree of managed memory")) return 13;
  for (int i = 1; i < 100; ++i) {
    if (differs(cudaFree(blocks[i]), cudaSuccess, "cudaFree")) return 14;
  }
  if (differs(cudaFree(blocks[1]), cudaErrorInvalidValue, "a second free")) return 15;
  if (differs(cudaMalloc(&at_exit.block, 4096), cudaSuccess, "cudaMalloc")) return 16;
  std::fputs("as expected\n", stderr);
  return 0;
}
