// RMM, all versions: gpumem under RMM's containers, and so under RAPIDS; needs a GPU.
#include <cuda_runtime.h>

#include <cstdio>
#include <rmm/device_buffer.hpp>
#include <rmm/resource_ref.hpp>
#include <vector>

#include "gpumem/adapters/rmm.hpp"
#include "gpumem/default_allocator.hpp"

namespace {

/// Generic code over RMM: sends `n` bytes to the device and back, and counts them.
std::size_t echoed(std::size_t n, cudaStream_t stream, rmm::device_async_resource_ref memory) {
  const std::vector<unsigned char> ones(n, 1);
  std::vector<unsigned char> back(n);
  rmm::device_buffer there{ones.data(), n, stream, memory};
  there.resize(2 * n, stream);
  cudaMemcpyAsync(back.data(), there.data(), n, cudaMemcpyDeviceToHost, stream);
  if (cudaStreamSynchronize(stream) != cudaSuccess) return 0;
  std::size_t count = 0;
  for (const unsigned char b : back) count += b;
  return count;
}

}  // namespace

int main() {
  const auto opened = gpumem::default_allocator();  // with the settings of GPUMEM_*
  if (!opened) return std::fprintf(stderr, "rmm_resource: %s\n", opened.why().message().c_str()), 1;
  gpumem::rmm_resource memory{**opened};

  cudaStream_t stream = nullptr;
  if (cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking) != cudaSuccess) return 1;
  std::size_t sum = 0;
  for (int i = 0; i < 100; ++i) sum += echoed(100'000, stream, memory);
  const gpumem::statistics now = *(*opened)->stats(0);
  std::printf("%zu bytes came back by %llu allocations, segments taken %llu\n", sum,
              static_cast<unsigned long long>(now.allocations), static_cast<unsigned long long>(now.grown_segments));
  return cudaStreamDestroy(stream) == cudaSuccess && sum == 10'000'000 ? 0 : 1;
}
