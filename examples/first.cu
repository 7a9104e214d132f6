// A kernel on memory of gpumem: nvcc -std=c++20 first.cu $(pkg-config --cflags --libs gpumem)
#include <cstdio>

#include "gpumem/default_allocator.hpp"

__global__ void twice(float* x) { x[threadIdx.x] = 2.0F * static_cast<float>(threadIdx.x); }

int main() {
  const auto memory = gpumem::default_allocator();  // every visible GPU, with the settings of the environment
  if (!memory) return std::puts(memory.why().message().c_str()), 1;
  cudaStream_t stream = nullptr;
  cudaStreamCreate(&stream);
  auto* x = static_cast<float*>((*memory)->allocate(256 * sizeof(float), {stream}));
  twice<<<1, 256, 0, stream>>>(x);
  float last = 0;
  cudaMemcpyAsync(&last, x + 255, sizeof last, cudaMemcpyDeviceToHost, stream);
  (*memory)->deallocate(x);  // safe at once: until the kernel is done, only this stream may reuse the block
  cudaStreamSynchronize(stream);
  std::printf("%g; reserved %s\n", last, gpumem::format_bytes((*memory)->stats(0)->reserved_bytes).c_str());
}
