// The allocators behind a preloaded program: one for each GPU whose primary context the program allocates in, opened by
// the first call that can be served.
//
// What cudaMalloc gives may be used on any stream, and what cudaFree takes is in nobody's hands when all work enqueued
// until then is done. In gpumem's terms: blocks are allocated on a stream of our own, `home`, and freed in the order of
// another, `all_work`, which stands for everything on the context (behind_all_work.hpp); whatever `home` is made to
// wait for, the host waits for before the block is handed out. Both are real streams, so that their handles are nobody
// else's, and no work is ever enqueued on them but waits.
// Locks: one for opening and for the list of captures; the calls of the fast path take none.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>

#include "entry_points.hpp"
#include "gpumem/allocator.hpp"
#include "gpumem/device.hpp"
#include "process_budget.hpp"

namespace gpumem {
struct cuda_driver;
}

namespace gpumem::preload {

struct served_context {
  int ordinal = 0;
  CUdevice handle{};
  CUcontext context = nullptr;
  std::unique_ptr<device> cuda_device;
  std::unique_ptr<allocator> memory;
  CUstream alloc_stream = nullptr;
  CUstream free_stream = nullptr;
  bool dedicated = false;  ///< GPUMEM_IPC=1: cudaMalloc is the driver's, one allocation each
  std::uint64_t limit_bytes = 0;
  bool whole_process = false;           ///< the limit is on all that the process has
  std::shared_ptr<group_ledger> group;  ///< of GPUMEM_GROUP; may be null
  process_budget account;
  CUmemoryPool default_pool = nullptr;       ///< of the driver's, in whose place gpumem stands
  std::atomic<bool> own_pool{false};         ///< the program chose a pool for cudaMallocAsync
  std::atomic<std::uint64_t> waits{0};       ///< that `home` was made to do
  std::atomic<std::uint64_t> waits_done{0};  ///< of these, what the host has waited for
};

/// The device whose primary context is current, opened where it was not yet; null where gpumem does not serve: another
/// kind of context, none, or a driver that it cannot use. `refusal` says what the program is told where the settings
/// cannot be used: then nothing is served, and nothing is passed on past a limit that somebody asked for.
served_context* current_device(CUresult* refusal) noexcept;

/// An allocation was made from `used`. At the first of the process every other visible device whose policy
/// takes everything is opened and taken, as TensorFlow does. What cannot be is logged, and tried again by its own use.
void take_every_device(const served_context& used) noexcept;

/// The device whose primary context the stream belongs to, which need not be the current one; as above.
served_context* device_of_stream(CUstream stream, CUresult* refusal) noexcept;
/// The stream, or for null every stream, is about to end: its handle may come again elsewhere.
void forget_stream(CUstream stream) noexcept;

/// The device with this ordinal may reach the memory of that context from now on.
void peer_may_reach(CUcontext memory_of, int ordinal) noexcept;

/// The device that holds the block which `address` points into; null: none.
served_context* holder_of(CUdeviceptr address, block_info* block) noexcept;

/// Calls `function(served_context&)` for each that is open.
template <typename Function>
void for_each_device(Function&& function) noexcept;

/// The device is about to be reset: what was open on it is let go of, and a new one is opened when it is next used.
/// Returns what was open, or null.
served_context* forget_device(CUdevice device) noexcept;
/// It was reset: its memory is nobody's, and its group's again.
void leave_group(served_context& device) noexcept;

/// Whether the driver had no memory when the calling thread last made a pool grow.
bool refused_by_driver() noexcept;

/// The driver as gpumem itself sees it; null if it cannot be used.
const cuda_driver* inner_driver() noexcept;

/// Wholly idle memory of every device goes back to the driver; false where there was none.
bool give_back_idle() noexcept;

// --- captures (serving_captures.cpp)
// ----------------------------------------------------------------------------------

/// Whether any stream captures, as far as the shim saw them begin.
bool capturing_somewhere() noexcept;
void capture_begins(CUstream stream) noexcept;
void capture_is_over(CUstream stream) noexcept;
/// Tells a device that was just opened of the captures under way.
void tell_of_captures(served_context& device) noexcept;

/// Relaxes the calling thread's capture mode, in which the driver allows what gpumem does beside a capture.
class relaxed_capture {
 public:
  relaxed_capture() noexcept;
  ~relaxed_capture();
  relaxed_capture(const relaxed_capture&) = delete;
  relaxed_capture& operator=(const relaxed_capture&) = delete;

 private:
  CUstreamCaptureMode mode_ = CU_STREAM_CAPTURE_MODE_RELAXED;
  bool exchanged_ = false;
};

// --- details of the template
// ------------------------------------------------------------------------------------------

inline constexpr int most_devices = 64;
extern std::atomic<served_context*> open_devices[most_devices];
extern std::atomic<int> open_devices_end;  ///< one behind the highest ordinal that was ever open

template <typename Function>
void for_each_device(Function&& function) noexcept {
  const int end = open_devices_end.load(std::memory_order_acquire);
  for (int i = 0; i < end; ++i) {
    if (served_context* const d = open_devices[i].load(std::memory_order_acquire)) function(*d);
  }
}

}  // namespace gpumem::preload
