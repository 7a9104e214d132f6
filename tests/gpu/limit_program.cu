// The program for `gpumem run --limit`: built by nvcc's defaults, with a static runtime, kernels and cuBLAS. It
// allocates until out of memory and multiplies matrices meanwhile. It knows nothing of gpumem.
#include <cublas_v2.h>
#include <cuda_runtime.h>

#include <cstdio>
#include <vector>

namespace {

constexpr std::size_t piece = std::size_t{256} << 20;
constexpr int n = 4096;  // three matrices of 64 MiB in each piece

__global__ void fill(float* at, std::size_t count, float value) {
  const std::size_t i = std::size_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (i < count) at[i] = value;
}

}  // namespace

int main() {
  cublasHandle_t handle = nullptr;
  if (cublasCreate(&handle) != CUBLAS_STATUS_SUCCESS) return std::puts("cublasCreate failed"), 3;
  std::vector<float*> pieces;
  unsigned products = 0;
  float* at = nullptr;
  while (cudaMalloc(&at, piece) == cudaSuccess) {
    pieces.push_back(at);
    constexpr std::size_t count = piece / sizeof(float);
    fill<<<static_cast<unsigned>(count / 256), 256>>>(at, count, 1.0F);
    const float one = 1;
    const float zero = 0;
    constexpr std::size_t matrix = std::size_t{n} * n;
    const cublasStatus_t done = cublasSgemm(handle, CUBLAS_OP_N, CUBLAS_OP_N, n, n, n, &one, at, n, at + matrix, n, &zero,
                                            at + 2 * matrix, n);
    float last = 0;
    if (done != CUBLAS_STATUS_SUCCESS ||
        cudaMemcpy(&last, at + 3 * matrix - 1, sizeof last, cudaMemcpyDeviceToHost) != cudaSuccess || last != n) {
      std::printf("product %u is %g; expected %d\n", products, static_cast<double>(last), n);
      return 4;
    }
    ++products;
  }
  if (cudaGetLastError() != cudaErrorMemoryAllocation || products == 0) return std::puts("nothing was given"), 5;
  std::printf("took %zu MiB, %u products\n", pieces.size() * (piece >> 20), products);
  for (float* const p : pieces) cudaFree(p);
  return cublasDestroy(handle) == CUBLAS_STATUS_SUCCESS ? 0 : 6;
}
