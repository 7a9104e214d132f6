// Which device a stream belongs to: asked of the driver when a handle is first seen, and remembered until it ends.
//
// A thread remembers its last answer, which holds as long as no stream has ended anywhere (`ended`).
#include <shared_mutex>
#include <unordered_map>

#include "driver_calls.hpp"
#include "sees.hpp"
#include "serving.hpp"

namespace gpumem::preload {
namespace {

std::atomic<std::uint64_t> ended{1};

struct known_streams {
  std::shared_mutex mutex;
  std::unordered_map<CUstream, served_device*> of;
};
known_streams& known() {
  static auto* const only = new known_streams;
  return *only;
}

struct last_answer {
  CUstream stream = nullptr;
  served_device* device = nullptr;
  std::uint64_t at = 0;
};
thread_local last_answer last;

bool is_default(CUstream s) noexcept { return reinterpret_cast<std::uintptr_t>(s) <= 2; }

served_device* ask(CUstream s, CUresult* refusal) noexcept {
  CUcontext theirs = nullptr;
  if (calls()->stream_get_ctx(s, &theirs) != CUDA_SUCCESS || theirs == nullptr) return nullptr;
  if (calls()->ctx_push_current(theirs) != CUDA_SUCCESS) return nullptr;
  served_device* const d = current_device(refusal);
  CUcontext popped = nullptr;
  calls()->ctx_pop_current(&popped);
  return d;
}

}  // namespace

served_device* device_of_stream(CUstream s, CUresult* refusal) noexcept {
  if (is_default(s) || calls() == nullptr) return current_device(refusal);
  *refusal = CUDA_SUCCESS;
  if (!sees_everything) return ask(s, refusal);
  const std::uint64_t now = ended.load(std::memory_order_acquire);
  if (last.stream == s && last.at == now) return last.device;
  served_device* d = nullptr;
  {
    const std::shared_lock lock{known().mutex};
    if (const auto at = known().of.find(s); at != known().of.end()) d = at->second;
  }
  if (d == nullptr) {
    d = ask(s, refusal);
    if (d == nullptr) return nullptr;
    const std::unique_lock lock{known().mutex};
    known().of[s] = d;
  }
  last = {s, d, now};
  return d;
}

void forget_stream(CUstream s) noexcept {
  {
    const std::unique_lock lock{known().mutex};
    if (s == nullptr) {
      known().of.clear();
    } else {
      known().of.erase(s);
    }
  }
  ended.fetch_add(1, std::memory_order_acq_rel);
}

}  // namespace gpumem::preload
