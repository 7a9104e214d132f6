// The scope of a driver call: makes the primary context current and relaxes the thread's capture mode.
//
// Inside `device::calls_together` only the thread's first scope does this; later scopes reuse it.
#pragma once

#include <utility>

#include "cuda_device.hpp"

namespace gpumem {

class cuda_device::entered {
 public:
  explicit entered(cuda_device& gpu) : driver_{gpu.driver_} {
    together& row = this_threads();
    const bool in_row = row.device == &gpu;
    if (in_row && row.ready) return;
    CUcontext wanted = nullptr;
    why_ = gpu.context(&wanted);
    if (!why_) return;
    CUcontext current = nullptr;
    if (driver_.ctx_get_current(&current) != CUDA_SUCCESS || current != wanted) {
      if (const CUresult e = driver_.ctx_push_current(wanted); e != CUDA_SUCCESS) {
        why_ = driver_status(driver_, driver_.ctx_push_current.name, e);
        return;
      }
      undo_.pop = true;
    }
    if (const CUresult e = driver_.exchange_capture_mode(&undo_.mode); e != CUDA_SUCCESS) {
      why_ = driver_status(driver_, driver_.exchange_capture_mode.name, e);  // calls would invalidate a capture
      return;
    }
    undo_.restore = true;
    if (!in_row) return;
    row.undo = std::exchange(undo_, {});
    row.ready = true;
  }
  ~entered() { undo_.all(driver_); }
  entered& operator=(entered&&) = delete;

  [[nodiscard]] bool ok() const noexcept { return why_.ok(); }
  [[nodiscard]] const status& why() const noexcept { return why_; }

  static void begin_together(const cuda_device& gpu) noexcept {
    together& row = this_threads();
    if (row.device == nullptr) row.device = &gpu;
    if (row.device == &gpu) ++row.depth;
  }
  static void end_together(const cuda_device& gpu) noexcept {
    together& row = this_threads();
    if (row.device != &gpu || --row.depth != 0) return;
    row.undo.all(gpu.driver_);
    row = {};
  }

 private:
  /// The changes that a scope made.
  struct changes {
    CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;  // after the exchange, the thread's former mode
    bool restore = false;
    bool pop = false;

    void all(const cuda_driver& driver) noexcept {
      if (restore) driver.exchange_capture_mode(&mode);
      CUcontext popped = nullptr;
      if (pop) driver.ctx_pop_current(&popped);
    }
  };
  struct together {
    const cuda_device* device = nullptr;
    unsigned depth = 0;
    bool ready = false;
    changes undo;
  };
  static together& this_threads() noexcept {
    thread_local together only;
    return only;
  }

  const cuda_driver& driver_;
  status why_;
  changes undo_;
};

template <typename Function, typename Describe, typename... Arguments>
status cuda_device::in_context(const Function& call, const Describe& doing, Arguments... arguments) {
  const entered scope{*this};
  return scope.ok() ? checked(driver_, call, doing, arguments...) : scope.why();
}

}  // namespace gpumem
