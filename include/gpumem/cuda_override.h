/* Redirects a source file's cudaMalloc and related calls to gpumem: compile with `-include gpumem/cuda_override.h` and
 * link libgpumem_runtime.so. Includes the headers of the CUDA runtime first. For C or C++, nvcc or the host's compiler.
 * Files compiled without it must free memory from redirected files through gpumem as well. */
#ifndef GPUMEM_CUDA_OVERRIDE_H
#define GPUMEM_CUDA_OVERRIDE_H

#ifdef __GNUC__
#pragma GCC system_header /* no warnings from C code inside the user's files */
#endif

#include <cuda_runtime_api.h>

#ifdef __cplusplus
#include <cuda_runtime.h> /* before the macros below, which would rename its templates */
#endif

#include "gpumem/runtime_calls.h"

#ifdef CUDA_API_PER_THREAD_DEFAULT_STREAM
#define GPUMEM_PER_THREAD 1
#else
#define GPUMEM_PER_THREAD 0
#endif

/* The runtime stores its last error. A request that must fail makes it store an out-of-memory error. */
static inline cudaError_t gpumem_override_remembered(int error) {
  void* nothing = NULL;
  return error == (int)cudaErrorMemoryAllocation ? cudaMalloc(&nothing, ~(size_t)0 >> 1) : (cudaError_t)error;
}

static inline cudaError_t gpumem_override_malloc(void** dev_ptr, size_t bytes) {
  const cudaError_t e = cudaFree(0);
  return e != cudaSuccess ? e : gpumem_override_remembered(gpumem_runtime_malloc(dev_ptr, bytes));
}
static inline cudaError_t gpumem_override_malloc_pitch(void** dev_ptr, size_t* pitch, size_t width, size_t height) {
  const cudaError_t e = cudaFree(0);
  return e != cudaSuccess ? e : gpumem_override_remembered(gpumem_runtime_malloc_pitch(dev_ptr, pitch, width, height));
}
static inline cudaError_t gpumem_override_free(void* dev_ptr) {
  return dev_ptr == NULL ? cudaFree(dev_ptr) : (cudaError_t)gpumem_runtime_free(dev_ptr);
}
static inline cudaError_t gpumem_override_malloc_async(void** dev_ptr, size_t bytes, cudaStream_t stream) {
  const cudaError_t e = cudaFree(0);
  return e != cudaSuccess ? e
                          : gpumem_override_remembered(
                                gpumem_runtime_malloc_async(dev_ptr, bytes, (void*)stream, GPUMEM_PER_THREAD));
}
static inline cudaError_t gpumem_override_free_async(void* dev_ptr, cudaStream_t stream) {
  return (cudaError_t)gpumem_runtime_free_async(dev_ptr, (void*)stream, GPUMEM_PER_THREAD);
}
static inline cudaError_t gpumem_override_mem_get_info(size_t* free_bytes, size_t* total_bytes) {
  const cudaError_t e = cudaFree(0);
  return e != cudaSuccess ? e : (cudaError_t)gpumem_runtime_mem_get_info(free_bytes, total_bytes);
}
static inline cudaError_t gpumem_override_begin_capture(cudaStream_t stream, enum cudaStreamCaptureMode mode) {
  cudaError_t e;
  gpumem_runtime_capture_begins((void*)stream, GPUMEM_PER_THREAD);
  e = cudaStreamBeginCapture(stream, mode);
  if (e != cudaSuccess) gpumem_runtime_capture_is_over((void*)stream, GPUMEM_PER_THREAD);
  return e;
}
static inline cudaError_t gpumem_override_end_capture(cudaStream_t stream, cudaGraph_t* graph) {
  const cudaError_t e = cudaStreamEndCapture(stream, graph);
  if (e != cudaErrorStreamCaptureWrongThread) gpumem_runtime_capture_is_over((void*)stream, GPUMEM_PER_THREAD);
  return e;
}
static inline cudaError_t gpumem_override_device_reset(void) {
  int device = 0;
  if (cudaGetDevice(&device) == cudaSuccess) gpumem_runtime_forget_device(device);
  return cudaDeviceReset();
}

#ifdef __cplusplus
/* Accept a pointer to any type, as the runtime's templates do. */
template <class T>
static inline cudaError_t gpumem_override_malloc(T** dev_ptr, size_t bytes) {
  return gpumem_override_malloc((void**)(void*)dev_ptr, bytes);
}
template <class T>
static inline cudaError_t gpumem_override_malloc_pitch(T** dev_ptr, size_t* pitch, size_t width, size_t height) {
  return gpumem_override_malloc_pitch((void**)(void*)dev_ptr, pitch, width, height);
}
template <class T>
static inline cudaError_t gpumem_override_malloc_async(T** dev_ptr, size_t bytes, cudaStream_t stream) {
  return gpumem_override_malloc_async((void**)(void*)dev_ptr, bytes, stream);
}
#endif

#undef cudaMallocAsync
#undef cudaFreeAsync
#undef cudaStreamBeginCapture
#undef cudaStreamEndCapture
#define cudaMalloc gpumem_override_malloc
#define cudaMallocPitch gpumem_override_malloc_pitch
#define cudaFree gpumem_override_free
#define cudaMallocAsync gpumem_override_malloc_async
#define cudaFreeAsync gpumem_override_free_async
#define cudaMemGetInfo gpumem_override_mem_get_info
#define cudaStreamBeginCapture gpumem_override_begin_capture
#define cudaStreamEndCapture gpumem_override_end_capture
#define cudaDeviceReset gpumem_override_device_reset

#endif
