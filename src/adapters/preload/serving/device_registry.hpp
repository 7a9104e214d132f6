// The allocators behind a preloaded program: one for each GPU in whose primary context the program allocates, opened by
// the first call that gpumem can serve.
//
// Any stream may use a block of cudaMalloc, and a block of cudaFree is reused once all work enqueued so far is done. So
// gpumem allocates such blocks on a stream of its own, `alloc_stream`, and frees them in the order of another,
// `free_stream`, which covers all work on the context (pooled_allocator.hpp). Before the host hands a block out, it
// waits for the work that `alloc_stream` was made to wait for. Both are real streams, so that their handles are unique.
// gpumem enqueues only waits on them.
//
// Locks: one for opening and one for the list of captures; the calls of the fast path take neither.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>

#include "entry_points.hpp"
#include "gpumem/device.hpp"
#include "pooled_allocator.hpp"
#include "process_budget.hpp"

namespace gpumem {
struct cuda_driver;
}

namespace gpumem::preload {

struct GPUMEM_HIDDEN served_context {
  int ordinal = 0;
  CUdevice handle{};
  CUcontext context = nullptr;
  std::unique_ptr<device> cuda_device;
  std::unique_ptr<pooled_allocator> memory;
  CUstream alloc_stream = nullptr;
  CUstream free_stream = nullptr;
  bool dedicated = false;  ///< GPUMEM_IPC=1: cudaMalloc makes one driver allocation each
  std::uint64_t limit_bytes = 0;
  bool whole_process = false;           ///< the limit covers all memory of the process
  std::shared_ptr<group_ledger> group;  ///< of GPUMEM_GROUP; may be null
  process_budget account;
  CUmemoryPool default_pool = nullptr;       ///< the driver's default pool, which gpumem replaces
  std::atomic<bool> own_pool{false};         ///< the program chose another pool for cudaMallocAsync
  std::atomic<std::uint64_t> waits{0};       ///< enqueued on `alloc_stream`
  std::atomic<std::uint64_t> waits_done{0};  ///< of `waits`, those that the host has waited for
};

/// Returns the device whose primary context is current, and opens it at first use. Null without a
/// current primary context, or if gpumem cannot use the driver; the call then goes to the driver. If
/// settings cannot be used, sets `refusal` to the result of the program's call, which must not go to the driver,
/// because a limit in the settings would not hold there.
served_context* current_device(CUresult* refusal) noexcept;

/// Call after an allocation on `used`. The first in the process opens every other visible device whose policy takes all
/// memory, as TensorFlow does. A failure is logged, and the device's own first use retries.
void take_every_device(const served_context& used) noexcept;

/// Returns the device in whose primary context the stream was created; for a default stream, and for null and
/// `refusal`, as `current_device`.
served_context* device_of_stream(CUstream stream, CUresult* refusal) noexcept;
/// Call before a stream ends, or with null before all streams end: the driver may reuse the handle on another device.
void forget_stream(CUstream stream) noexcept;

/// Lets the device with this ordinal reach the memory of that context from now on.
void peer_may_reach(CUcontext memory_of, int ordinal) noexcept;

/// Returns the device that holds the block which `address` points into, and describes the block in `*block`; null:
/// none.
served_context* holder_of(CUdeviceptr address, block_info* block) noexcept;

/// Calls `function(served_context&)` for each open device.
template <typename Function>
void for_each_device(Function&& function) noexcept;

/// Call before a reset of the device. Removes the device from the open ones, so that its next use opens it again.
/// Returns the removed device, or null.
served_context* forget_device(CUdevice device) noexcept;
/// Call after the reset: returns the device's memory to its group.
void leave_group(served_context& device) noexcept;

/// Whether the driver was out of memory when the calling thread last made a pool grow.
bool refused_by_driver() noexcept;

/// Returns the driver as gpumem itself calls it, or why it cannot be used (inner_driver.cpp).
result<const cuda_driver*> inner_driver();

/// Returns idle segments of every device to the driver; false if there were none.
bool give_back_idle() noexcept;

// --- captures (serving_captures.cpp) -------------------------------------------------------------------------------

/// Whether any stream captures, among the captures that the shim saw begin.
bool capturing_somewhere() noexcept;
void capture_begins(CUstream stream) noexcept;
void capture_is_over(CUstream stream) noexcept;
/// Announces the captures under way to a device that has just been opened.
void tell_of_captures(served_context& device) noexcept;

/// Relaxes the calling thread's capture mode, so that the driver allows gpumem's calls beside a capture.
class relaxed_capture {
 public:
  relaxed_capture() noexcept;
  ~relaxed_capture();
  relaxed_capture& operator=(relaxed_capture&&) = delete;

 private:
  CUstreamCaptureMode mode_ = CU_STREAM_CAPTURE_MODE_RELAXED;
  bool exchanged_ = false;
};

// --- details of the template ---------------------------------------------------------------------------------------

inline constexpr int most_devices = 64;
extern std::atomic<served_context*> open_devices[most_devices];
extern std::atomic<int> open_devices_end;  ///< highest ordinal ever open, plus 1

template <typename Function>
void for_each_device(Function&& function) noexcept {
  const int end = open_devices_end.load(std::memory_order_acquire);
  for (int i = 0; i < end; ++i) {
    if (served_context* const d = open_devices[i].load(std::memory_order_acquire)) function(*d);
  }
}

}  // namespace gpumem::preload
