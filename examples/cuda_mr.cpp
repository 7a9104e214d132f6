// cuda::mr: gpumem as a memory resource of CCCL; needs a GPU.
#include "gpumem/adapters/cuda_mr.hpp"

#include <cuda_runtime.h>

#include <cstdio>
#include <vector>

#include "gpumem/default_allocator.hpp"

namespace {

/// Generic code over cuda::mr: fills `n` bytes on the device and counts them on the host.
template <typename Resource>
std::size_t filled(Resource& memory, std::size_t n, cudaStream_t stream) {
  void* const block = memory.allocate_async(n, 256, cuda::stream_ref{stream});
  std::vector<unsigned char> back(n);
  cudaMemsetAsync(block, 1, n, stream);
  cudaMemcpyAsync(back.data(), block, n, cudaMemcpyDeviceToHost, stream);
  memory.deallocate_async(block, n, 256, cuda::stream_ref{stream});  // in stream order, without a wait
  if (cudaStreamSynchronize(stream) != cudaSuccess) return 0;
  std::size_t count = 0;
  for (const unsigned char b : back) count += b;
  return count;
}

}  // namespace

int main() {
  const auto opened = gpumem::default_allocator();  // with the settings of GPUMEM_*
  if (!opened) return std::fprintf(stderr, "cuda_mr: %s\n", opened.why().message().c_str()), 1;
  gpumem::cuda_resource memory{**opened};

  cudaStream_t stream = nullptr;
  if (cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking) != cudaSuccess) return 1;
  std::size_t sum = 0;
  for (int i = 0; i < 100; ++i) sum += filled(memory, 100'000, stream);
  const gpumem::statistics now = *(*opened)->stats(0);
  std::printf("%zu bytes filled by %llu allocations, segments taken %llu\n", sum,
              static_cast<unsigned long long>(now.allocations), static_cast<unsigned long long>(now.grown_segments));
  return cudaStreamDestroy(stream) == cudaSuccess && sum == 10'000'000 ? 0 : 1;
}
