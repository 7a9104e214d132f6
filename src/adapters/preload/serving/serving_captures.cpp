// The open captures. While one is open gpumem waits for nothing, and the driver allocates for streams that capture.
#include <algorithm>
#include <thread>
#include <vector>

#include "checked_mutex.hpp"
#include "device_registry.hpp"

namespace gpumem::preload {
namespace {

checked_mutex captures_mutex;
std::atomic<int> captures_open{0};

/// Every thread's default stream has the same handle, so the thread tells them apart.
struct open_capture {
  CUstream stream;
  std::thread::id thread;
  std::uint64_t number;
  [[nodiscard]] bool is_nameable() const noexcept {
    return stream != CU_STREAM_PER_THREAD || thread == std::this_thread::get_id();
  }
};

std::vector<open_capture>& captures() {
  static auto* const only = new std::vector<open_capture>;
  return *only;
}
std::uint64_t captures_so_far = 0;

}  // namespace

bool capturing_somewhere() noexcept { return captures_open.load(std::memory_order_acquire) > 0; }

// A device that does not own the stream refuses, or has an empty capture; both are harmless.
void capture_begins(CUstream stream) noexcept {
  captures_open.fetch_add(1, std::memory_order_acq_rel);
  {
    const mutex_lock lock{captures_mutex};
    captures().push_back({stream, std::this_thread::get_id(), ++captures_so_far});
  }
  for_each_device([stream](served_context& device) { static_cast<void>(device.memory->capture_begin({stream})); });
}

void capture_is_over(CUstream stream) noexcept {
  std::uint64_t number = 0;
  {
    const mutex_lock lock{captures_mutex};
    const auto found = std::find_if(captures().begin(), captures().end(), [stream](const open_capture& capture) {
      return capture.stream == stream && capture.is_nameable();
    });
    if (found == captures().end()) return;
    number = found->number;
    captures().erase(found);
  }
  // The capture is empty, because the driver made the graph's allocations.
  for_each_device([&](served_context& device) {
    device.memory->end_held_capture(number);
    if (const result<graph_ref> empty = device.memory->capture_end({stream}))
      static_cast<void>(device.memory->graph_release(*empty));
  });
  captures_open.fetch_sub(1, std::memory_order_acq_rel);
}

void tell_of_captures(served_context& device) noexcept {
  const mutex_lock lock{captures_mutex};
  for (const open_capture& capture : captures()) {
    static_cast<void>(capture.is_nameable() ? device.memory->capture_begin({capture.stream})
                                            : device.memory->hold_capture(capture.number));
  }
}

}  // namespace gpumem::preload
