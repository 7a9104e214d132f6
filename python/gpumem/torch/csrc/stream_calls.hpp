// The driver calls by which own memory waits for streams. This file does not include torch; tests replace the calls.
#pragma once

#include <cuda_runtime_api.h>

#include "memory_source.hpp"

class stream_calls {
 public:
  stream_calls() = default;
  stream_calls(const stream_calls&) = delete;
  stream_calls& operator=(const stream_calls&) = delete;
  virtual ~stream_calls() = default;
  /// False if the stream captures. Also false if its state cannot be queried: the legacy stream beside a capture, a
  /// destroyed stream.
  virtual bool captures_nothing(const device_stream& stream) noexcept = 0;
  /// Records an event on the stream; null if that fails.
  virtual cudaEvent_t record(const device_stream& stream) noexcept = 0;
  virtual bool is_done(cudaEvent_t event) noexcept = 0;
  virtual void destroy(cudaEvent_t event) noexcept = 0;
  /// Waits for all work of the GPU; false if that fails.
  virtual bool synchronize(int device) noexcept = 0;
};

/// In its scope, no call of this thread invalidates a capture, unless the call names a capturing stream.
class relaxed_capture_mode {
 public:
  relaxed_capture_mode() noexcept { static_cast<void>(cudaThreadExchangeStreamCaptureMode(&mode_)); }
  relaxed_capture_mode(const relaxed_capture_mode&) = delete;
  relaxed_capture_mode& operator=(const relaxed_capture_mode&) = delete;
  ~relaxed_capture_mode() { static_cast<void>(cudaThreadExchangeStreamCaptureMode(&mode_)); }

 private:
  cudaStreamCaptureMode mode_ = cudaStreamCaptureModeRelaxed;
};

/// Makes a GPU current for a scope, if it can. Requires that it has a context.
class current_gpu {
 public:
  explicit current_gpu(int device) noexcept {
    if (cudaGetDevice(&previous_) != cudaSuccess || previous_ == device) return;
    changed_ = cudaSetDevice(device) == cudaSuccess;
  }
  current_gpu(const current_gpu&) = delete;
  current_gpu& operator=(const current_gpu&) = delete;
  ~current_gpu() {
    if (changed_) static_cast<void>(cudaSetDevice(previous_));
  }

 private:
  int previous_ = 0;
  bool changed_ = false;
};

/// The runtime's calls, each in relaxed capture mode and on the stream's own GPU. An error does not stay in the thread.
class runtime_stream_calls final : public stream_calls {
 public:
  bool captures_nothing(const device_stream& stream) noexcept override {
    const current_gpu current{stream.device};
    cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
    return succeeds(cudaStreamIsCapturing(stream.handle, &status)) && status == cudaStreamCaptureStatusNone;
  }
  cudaEvent_t record(const device_stream& stream) noexcept override {
    const relaxed_capture_mode relaxed;
    const current_gpu current{stream.device};
    cudaEvent_t made = nullptr;
    if (!succeeds(cudaEventCreateWithFlags(&made, cudaEventDisableTiming))) return nullptr;
    if (succeeds(cudaEventRecord(made, stream.handle))) return made;
    destroy(made);
    return nullptr;
  }
  bool is_done(cudaEvent_t event) noexcept override {
    const relaxed_capture_mode relaxed;
    return succeeds(cudaEventQuery(event));
  }
  void destroy(cudaEvent_t event) noexcept override {
    const relaxed_capture_mode relaxed;
    static_cast<void>(succeeds(cudaEventDestroy(event)));
  }
  bool synchronize(int device) noexcept override {
    const relaxed_capture_mode relaxed;
    const current_gpu current{device};
    return succeeds(cudaDeviceSynchronize());
  }

 private:
  static bool succeeds(cudaError_t result) noexcept {
    if (result != cudaSuccess) static_cast<void>(cudaGetLastError());
    return result == cudaSuccess;
  }
};

inline stream_calls& runtime_calls() {
  static runtime_stream_calls calls;
  return calls;
}
