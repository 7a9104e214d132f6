// libgpumem_wrap.a: the functions that replace a program's runtime calls under `ld --wrap` (wrap.options). Linked into
// the program, so that __real_ resolves to the program's own runtime, static or shared.
#include "gpumem/runtime_calls.h"

// Declares the linker's symbols, which no header declares.
extern "C" {
int __real_cudaMalloc(void** dev_ptr, std::size_t bytes);
int __real_cudaFree(void* dev_ptr);
int __real_cudaDeviceReset();
int cudaGetDevice(int* device);
int __wrap_cudaMalloc(void** dev_ptr, std::size_t bytes);
int __wrap_cudaMallocPitch(void** dev_ptr, std::size_t* pitch, std::size_t width, std::size_t height);
int __wrap_cudaFree(void* dev_ptr);
int __wrap_cudaMallocAsync(void** dev_ptr, std::size_t bytes, void* stream);
int __wrap_cudaMallocAsync_ptsz(void** dev_ptr, std::size_t bytes, void* stream);
int __wrap_cudaFreeAsync(void* dev_ptr, void* stream);
int __wrap_cudaFreeAsync_ptsz(void* dev_ptr, void* stream);
int __wrap_cudaMemGetInfo(std::size_t* free_bytes, std::size_t* total_bytes);
int __wrap_cudaStreamBeginCapture(void* stream, int mode);
int __wrap_cudaStreamBeginCapture_ptsz(void* stream, int mode);
int __wrap_cudaStreamEndCapture(void* stream, void** graph);
int __wrap_cudaStreamEndCapture_ptsz(void* stream, void** graph);
int __wrap_cudaDeviceReset();
int __real_cudaStreamBeginCapture(void* stream, int mode);
int __real_cudaStreamBeginCapture_ptsz(void* stream, int mode);
int __real_cudaStreamEndCapture(void* stream, void** graph);
int __real_cudaStreamEndCapture_ptsz(void* stream, void** graph);
}

namespace {

constexpr int out_of_memory = 2;

/// Makes the runtime's context current, which the runtime does at its first call that needs one.
int with_context() { return __real_cudaFree(nullptr); }

/// Sets the runtime's last error to out-of-memory by an impossible request.
int remembered(int error) {
  void* nothing = nullptr;
  return error == out_of_memory ? __real_cudaMalloc(&nothing, ~std::size_t{0} >> 1) : error;
}

constexpr int wrong_thread = 908;  // cudaErrorStreamCaptureWrongThread: the capture goes on

template <typename Real>
int begin_capture(void* stream, int per_thread, Real&& real) {
  gpumem_runtime_capture_begins(stream, per_thread);
  const int e = real();
  if (e != 0) gpumem_runtime_capture_is_over(stream, per_thread);
  return e;
}
template <typename Real>
int end_capture(void* stream, int per_thread, Real&& real) {
  const int e = real();
  if (e != wrong_thread) gpumem_runtime_capture_is_over(stream, per_thread);
  return e;
}

}  // namespace

int __wrap_cudaMalloc(void** dev_ptr, std::size_t bytes) {
  if (const int e = with_context(); e != 0 || dev_ptr == nullptr) return e != 0 ? e : __real_cudaMalloc(dev_ptr, bytes);
  return remembered(gpumem_runtime_malloc(dev_ptr, bytes));
}

int __wrap_cudaMallocPitch(void** dev_ptr, std::size_t* pitch, std::size_t width, std::size_t height) {
  if (const int e = with_context(); e != 0) return e;
  return remembered(gpumem_runtime_malloc_pitch(dev_ptr, pitch, width, height));
}

int __wrap_cudaFree(void* dev_ptr) {
  return dev_ptr == nullptr ? __real_cudaFree(dev_ptr) : gpumem_runtime_free(dev_ptr);
}

int __wrap_cudaMallocAsync(void** dev_ptr, std::size_t bytes, void* stream) {
  if (const int e = with_context(); e != 0) return e;
  return remembered(gpumem_runtime_malloc_async(dev_ptr, bytes, stream, 0));
}
int __wrap_cudaMallocAsync_ptsz(void** dev_ptr, std::size_t bytes, void* stream) {
  if (const int e = with_context(); e != 0) return e;
  return remembered(gpumem_runtime_malloc_async(dev_ptr, bytes, stream, 1));
}
int __wrap_cudaFreeAsync(void* dev_ptr, void* stream) { return gpumem_runtime_free_async(dev_ptr, stream, 0); }
int __wrap_cudaFreeAsync_ptsz(void* dev_ptr, void* stream) { return gpumem_runtime_free_async(dev_ptr, stream, 1); }

int __wrap_cudaMemGetInfo(std::size_t* free_bytes, std::size_t* total_bytes) {
  if (const int e = with_context(); e != 0) return e;
  return gpumem_runtime_mem_get_info(free_bytes, total_bytes);
}

int __wrap_cudaStreamBeginCapture(void* stream, int mode) {
  return begin_capture(stream, 0, [=] { return __real_cudaStreamBeginCapture(stream, mode); });
}
int __wrap_cudaStreamBeginCapture_ptsz(void* stream, int mode) {
  return begin_capture(stream, 1, [=] { return __real_cudaStreamBeginCapture_ptsz(stream, mode); });
}
int __wrap_cudaStreamEndCapture(void* stream, void** graph) {
  return end_capture(stream, 0, [=] { return __real_cudaStreamEndCapture(stream, graph); });
}
int __wrap_cudaStreamEndCapture_ptsz(void* stream, void** graph) {
  return end_capture(stream, 1, [=] { return __real_cudaStreamEndCapture_ptsz(stream, graph); });
}

int __wrap_cudaDeviceReset() {
  int device = 0;
  if (cudaGetDevice(&device) == 0) gpumem_runtime_forget_device(device);
  return __real_cudaDeviceReset();
}
