// An ordinary program that takes all memory it can get, using only CUDA's runtime. Its last line has the amount; then
// it continues with less, and exits normally.
#include <cuda_runtime.h>

#include <cstdio>
#include <vector>

namespace {
constexpr std::size_t mib = std::size_t{1} << 20;
constexpr std::size_t piece = 64 * mib;
}  // namespace

int main() {
  int devices = 0;
  if (const cudaError_t e = cudaGetDeviceCount(&devices); e != cudaSuccess) {
    std::printf("no device: %s\n", cudaGetErrorString(e));
    return 3;
  }
  cudaDeviceProp properties{};
  if (cudaGetDeviceProperties(&properties, 0) != cudaSuccess) return 4;
  std::vector<void*> pieces;
  void* one = nullptr;
  while (cudaMalloc(&one, piece) == cudaSuccess) pieces.push_back(one);
  if (cudaGetLastError() != cudaErrorMemoryAllocation || pieces.empty()) {
    std::puts("nothing was given");
    return 5;
  }
  cudaFree(pieces.back());
  pieces.pop_back();
  const bool again = cudaMalloc(&one, piece) == cudaSuccess;
  if (again) pieces.push_back(one);
  std::size_t free_bytes = 0;
  std::size_t total_bytes = 0;
  if (cudaMemGetInfo(&free_bytes, &total_bytes) != cudaSuccess) return 6;
  std::printf("%d device, the first ends in %02x: took %zu MiB of %zu\n", devices,
              static_cast<unsigned>(static_cast<unsigned char>(properties.uuid.bytes[15])), pieces.size() * piece / mib,
              total_bytes / mib);
  for (void* const p : pieces) {
    if (cudaFree(p) != cudaSuccess) return 7;
  }
  return again ? 0 : 8;
}
