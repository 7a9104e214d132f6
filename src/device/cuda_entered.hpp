// The scope of one call into the driver: the primary context is current, and the thread's capture mode relaxed.
#pragma once

#include "cuda_device.hpp"

namespace gpumem {

class cuda_device::entered {
 public:
  explicit entered(cuda_device& of) : driver_{of.driver_} {
    CUcontext wanted = nullptr;
    why_ = of.context(&wanted);
    if (!why_) return;
    CUcontext current = nullptr;
    if (driver_.ctx_get_current(&current) != CUDA_SUCCESS || current != wanted) {
      if (const CUresult e = driver_.ctx_push_current(wanted); e != CUDA_SUCCESS) {
        why_ = driver_status(driver_, driver_.ctx_push_current.name, e);
        return;
      }
      pushed_ = true;
    }
    relaxed_ = driver_.exchange_capture_mode(&mode_) == CUDA_SUCCESS;
  }
  ~entered() {
    if (relaxed_) driver_.exchange_capture_mode(&mode_);
    CUcontext popped = nullptr;
    if (pushed_) driver_.ctx_pop_current(&popped);
  }
  entered(const entered&) = delete;
  entered& operator=(const entered&) = delete;

  [[nodiscard]] bool ok() const noexcept { return why_.ok(); }
  [[nodiscard]] const status& why() const noexcept { return why_; }

 private:
  const cuda_driver& driver_;
  status why_;
  CUstreamCaptureMode mode_ = CU_STREAM_CAPTURE_MODE_RELAXED;  // then what the thread had
  bool pushed_ = false;
  bool relaxed_ = false;
};

}  // namespace gpumem
