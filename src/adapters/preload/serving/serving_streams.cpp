// Finds the device of a stream: queries the driver when a handle is first seen, and remembers the result until the
// stream ends.
//
// Each thread caches its last result, which is valid until any stream ends (`ended`).
#include <shared_mutex>
#include <unordered_map>

#include "device_registry.hpp"
#include "driver_calls.hpp"

namespace gpumem::preload {
namespace {

std::atomic<std::uint64_t> ended{1};

struct known_streams {
  std::shared_mutex mutex;
  std::unordered_map<CUstream, served_context*> devices;
};
known_streams& known() {
  static auto* const only = new known_streams;
  return *only;
}

struct last_answer {
  CUstream stream = nullptr;
  served_context* device = nullptr;
  std::uint64_t generation = 0;
};
thread_local last_answer last;

bool is_default(CUstream stream) noexcept { return reinterpret_cast<std::uintptr_t>(stream) <= 2; }

served_context* ask(CUstream stream, CUresult* refusal) noexcept {
  CUcontext theirs = nullptr;
  if (calls()->stream_get_ctx(stream, &theirs) != CUDA_SUCCESS || theirs == nullptr) return nullptr;
  if (calls()->ctx_push_current(theirs) != CUDA_SUCCESS) return nullptr;
  served_context* const d = current_device(refusal);
  CUcontext popped = nullptr;
  calls()->ctx_pop_current(&popped);
  return d;
}

}  // namespace

served_context* device_of_stream(CUstream stream, CUresult* refusal) noexcept {
  if (is_default(stream) || calls() == nullptr) return current_device(refusal);
  *refusal = CUDA_SUCCESS;
  const std::uint64_t generation = ended.load(std::memory_order_acquire);
  if (last.stream == stream && last.generation == generation) return last.device;
  served_context* d = nullptr;
  {
    const std::shared_lock lock{known().mutex};
    if (const auto found = known().devices.find(stream); found != known().devices.end()) d = found->second;
  }
  if (d == nullptr) {
    d = ask(stream, refusal);
    if (d == nullptr) return nullptr;
    const std::unique_lock lock{known().mutex};
    known().devices[stream] = d;
  }
  last = {stream, d, generation};
  return d;
}

void forget_stream(CUstream stream) noexcept {
  {
    const std::unique_lock lock{known().mutex};
    if (stream == nullptr) {
      known().devices.clear();
    } else {
      known().devices.erase(stream);
    }
  }
  ended.fetch_add(1, std::memory_order_acq_rel);
}

}  // namespace gpumem::preload
