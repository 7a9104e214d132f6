// A program with a kernel, compiled by nvcc, on the simulated driver: it registers, launches and waits; the kernel does
// not run.
#include <cstdio>
#include <cstring>

__global__ void fill(int* out, int value, int count) {
  const int i = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  if (i < count) out[i] = value;
}

#define CHECK(call)                                                                             \
  do {                                                                                          \
    const cudaError_t e_ = (call);                                                              \
    if (e_ != cudaSuccess) {                                                                    \
      std::fprintf(stderr, "%s: %s (%s)\n", #call, cudaGetErrorName(e_), cudaGetErrorString(e_)); \
      return 1;                                                                                 \
    }                                                                                           \
  } while (false)

int main(int argc, char** argv) {
  const bool per_thread = argc > 1 && std::strcmp(argv[1], "per-thread") == 0;
  constexpr int count = 1 << 16;
  int* numbers = nullptr;
  CHECK(cudaMalloc(&numbers, count * sizeof(int)));
  cudaEvent_t done;
  CHECK(cudaEventCreate(&done));
  fill<<<count / 256, 256>>>(numbers, 7, count);
  CHECK(cudaGetLastError());
  CHECK(cudaEventRecord(done));
  if (cudaEventQuery(done) != cudaErrorNotReady || cudaGetLastError() != cudaSuccess) return 2;
  CHECK(cudaEventSynchronize(done));

  // Finds the default stream of the launch: only this stream delays `done`.
  unsigned long long id = 0;
  unsigned long long legacy = 0;
  CHECK(cudaStreamGetId(nullptr, &id));
  CHECK(cudaStreamGetId(cudaStreamLegacy, &legacy));
  if ((id != legacy) != per_thread) return 3;

  cudaStream_t stream;
  CHECK(cudaStreamCreate(&stream));
  cudaGraph_t graph;
  cudaGraphExec_t exec;
  CHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
  fill<<<1, 256, 0, stream>>>(numbers, 8, 256);
  CHECK(cudaGetLastError());
  CHECK(cudaStreamEndCapture(stream, &graph));
  CHECK(cudaGraphInstantiate(&exec, graph, 0));
  CHECK(cudaGraphLaunch(exec, stream));
  CHECK(cudaStreamSynchronize(stream));
  CHECK(cudaGraphExecDestroy(exec));
  CHECK(cudaGraphDestroy(graph));

  cudaFuncAttributes attributes;
  CHECK(cudaFuncGetAttributes(&attributes, fill));
  int blocks = 0;
  CHECK(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, fill, 256, 0));
  CHECK(cudaStreamDestroy(stream));
  CHECK(cudaFree(numbers));
  CHECK(cudaDeviceSynchronize());
  std::puts("ok");
  return blocks == 8 ? 0 : 4;
}
