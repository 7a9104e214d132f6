/// Everything of a plug-in with baselines over the CUDA runtime except the allocators. Include it in one source file,
/// which defines `open_baseline`.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "baseline.h"

struct gpumem_baseline {
  gpumem_baseline() = default;
  gpumem_baseline& operator=(gpumem_baseline&&) = delete;
  virtual ~gpumem_baseline() = default;
  virtual cudaError_t allocate(void** block, std::size_t bytes, cudaStream_t stream) = 0;
  virtual cudaError_t release(void* block, cudaStream_t stream) = 0;
  virtual std::uint64_t reserved_bytes() = 0;
  virtual int runtime_calls_of_a_pair(cudaStream_t /*s*/) { return -1; }
};

namespace {

gpumem_baseline* open_baseline(const char* kind, int device);

cudaStream_t stream_of(void* handle) { return static_cast<cudaStream_t>(handle); }

int order(void* first, void* second) {
  cudaEvent_t e = nullptr;
  cudaError_t done = cudaEventCreateWithFlags(&e, cudaEventDisableTiming);
  if (done != cudaSuccess) return done;
  done = cudaEventRecord(e, stream_of(first));
  if (done == cudaSuccess) done = cudaStreamWaitEvent(stream_of(second), e, 0);
  cudaEventDestroy(e);
  return done;
}

constexpr std::size_t most_touched = 256;

int touch(void* block, std::size_t bytes, void* stream) {
  return cudaMemsetAsync(block, 1, bytes < most_touched ? bytes : most_touched, stream_of(stream));
}

int create_stream(void** stream) {
  cudaStream_t made = nullptr;
  const cudaError_t done = cudaStreamCreateWithFlags(&made, cudaStreamNonBlocking);
  *stream = made;
  return done;
}

// Clears the runtime's last error, so that no later call of the program reports it.
int answered(cudaError_t done) {
  if (done != cudaSuccess) cudaGetLastError();
  return done;
}

constexpr gpumem_baseline_api api{
    .open = open_baseline,
    .close = [](gpumem_baseline* of) { delete of; },
    .allocate = [](gpumem_baseline* of, void** p, std::size_t bytes,
                   void* s) { return answered(of->allocate(p, bytes, stream_of(s))); },
    .release = [](gpumem_baseline* of, void* p, void* s) { return answered(of->release(p, stream_of(s))); },
    .reserved_bytes = [](gpumem_baseline* of) { return of->reserved_bytes(); },
    .set_device = [](int device) { return static_cast<int>(cudaSetDevice(device)); },
    .stream_create = create_stream,
    .stream_destroy = [](void* s) { return static_cast<int>(cudaStreamDestroy(stream_of(s))); },
    .synchronize = [] { return static_cast<int>(cudaDeviceSynchronize()); },
    .order = order,
    .runtime_calls_of_a_pair = [](gpumem_baseline* of, void* s) { return of->runtime_calls_of_a_pair(stream_of(s)); },
    .touch = touch,
    .reset = [] { return static_cast<int>(cudaDeviceReset()); },
    .error_text = [](int error) { return cudaGetErrorString(static_cast<cudaError_t>(error)); },
};

}  // namespace

extern "C" const gpumem_baseline_api* gpumem_baselines(void) { return &api; }
