#include "other_contexts.hpp"

#include <fmt/format.h>

#include <array>
#include <utility>
#include <vector>

#include "driver_calls.hpp"
#include "gpumem/cuda_device.hpp"
#include "job_budget.hpp"
#include "log.hpp"
#include "process_accounting.hpp"
#include "process_settings.hpp"

namespace gpumem::preload {
namespace {

checked_mutex opening_unserved;
std::array<std::atomic<unserved_device*>, most_devices> unserved;

/// All accounts ever opened; never freed, because another thread may be using one.
std::vector<unserved_device*>& all_unserved() {
  static auto* const only = new std::vector<unserved_device*>;
  return *only;
}

status open_account(unserved_device& device) {
  const process_settings& all = settings_of_process();
  if (!all.usable) return all.usable;
  const settings options = all.options.for_device(device.ordinal);
  const device_info& info = device.cuda_device->info();
  std::size_t free_bytes = 0;
  std::size_t total_bytes = 0;
  if (const CUresult e = driver_call<entry::mem_get_info>(&free_bytes, &total_bytes); e != CUDA_SUCCESS) {
    return {errc::device_error, fmt::format("cuMemGetInfo failed with CUDA error {}", static_cast<int>(e))};
  }
  result<budget_of_process> budget = open_budget(info, options, free_bytes);
  if (!budget) return budget.why();
  device.group = std::move(budget->group);
  device.whole_process = options.limit || in_job(options);
  device.limit_bytes = budget->limit.resolve(info.total_bytes, free_bytes);
  const std::uint64_t measured = device.whole_process ? process_bytes(info, device.group.get()) : 0;
  if (status ok = device.account.open(nullptr, device.limit_bytes, headroom_of(options, device.whole_process), measured,
                                      device.group.get());
      !ok) {
    return ok;
  }
  return job_can_hold(options, device.group.get());
}

/// False for a primary context that is current before its first use, as CUDA's runtime makes it, or after a reset: it
/// holds nothing that could be counted.
bool current_context_lives() noexcept {
  std::size_t free_bytes = 0;
  std::size_t total_bytes = 0;
  return driver_call<entry::mem_get_info>(&free_bytes, &total_bytes) != CUDA_ERROR_CONTEXT_IS_DESTROYED;
}

unserved_device* open_unserved(int ordinal) {
  const mutex_lock lock{opening_unserved};
  std::atomic<unserved_device*>& place = unserved[static_cast<std::size_t>(ordinal)];
  if (unserved_device* const existing = place.load(std::memory_order_acquire)) return existing;
  const result<const cuda_driver*> driver = inner_driver();
  result<std::unique_ptr<device>> cuda_device =
      open_cuda_device({.ordinal = ordinal, .driver = driver ? *driver : nullptr});
  auto made = std::make_unique<unserved_device>();
  made->ordinal = ordinal;
  if (cuda_device) made->cuda_device = *std::move(cuda_device);
  const status opened = cuda_device ? open_account(*made) : cuda_device.why();
  if (!opened) {
    log_line(fmt::format("device {}: {}; every allocation fails until that is mended", ordinal, opened.message()));
    made->refusal = CUDA_ERROR_OUT_OF_MEMORY;
  }
  all_unserved().push_back(made.get());
  place.store(made.get(), std::memory_order_release);
  return made.release();
}

}  // namespace

int current_ordinal() noexcept {
  CUcontext context = nullptr;
  CUdevice handle{};
  if (calls() == nullptr || calls()->ctx_get_current(&context) != CUDA_SUCCESS || context == nullptr) return -1;
  if (calls()->ctx_get_device(&handle) != CUDA_SUCCESS || handle < 0 || handle >= most_devices) return -1;
  return handle;  // a CUdevice is its ordinal
}

unserved_device* unserved_current(CUresult* refusal) noexcept {
  *refusal = CUDA_SUCCESS;
  if (!limits_process()) return nullptr;
  const int ordinal = current_ordinal();
  if (ordinal < 0) return nullptr;
  if (open_devices[ordinal].load(std::memory_order_acquire) != nullptr) return nullptr;
  const settings options = settings_of_process().options.for_device(ordinal);
  if (!counts_beside_pool(options)) return nullptr;
  unserved_device* device = unserved[static_cast<std::size_t>(ordinal)].load(std::memory_order_acquire);
  if (device == nullptr) {
    const relaxed_capture relaxed;
    if (!current_context_lives()) return nullptr;
    device = open_unserved(ordinal);
  }
  *refusal = device->refusal;
  return *refusal == CUDA_SUCCESS ? device : nullptr;
}

unserved_device* unserved_account(int ordinal) noexcept {
  if (ordinal < 0 || ordinal >= most_devices) return nullptr;
  unserved_device* const device = unserved[static_cast<std::size_t>(ordinal)].load(std::memory_order_acquire);
  return device != nullptr && device->account.active() ? device : nullptr;
}

void note_context(CUcontext made) noexcept {
  if (made == nullptr || calls() == nullptr || settings_of_process().options.job.empty() || !limits_process()) return;
  if (calls()->ctx_push_current(made) != CUDA_SUCCESS) return;
  CUresult refusal = CUDA_SUCCESS;
  static_cast<void>(unserved_current(&refusal));
  CUcontext popped = nullptr;
  calls()->ctx_pop_current(&popped);
}

void now_served(served_context& device) noexcept {
  unserved_device* const before = unserved[static_cast<std::size_t>(device.ordinal)].exchange(nullptr);
  if (before != nullptr) device.account.take_over(before->account);
}

void forget_unserved(int ordinal) noexcept {
  if (ordinal < 0 || ordinal >= most_devices) return;
  unserved_device* const before = unserved[static_cast<std::size_t>(ordinal)].exchange(nullptr);
  if (before == nullptr || before->group == nullptr) return;
  before->group->give_back(before->account.counted_bytes());
  before->group->leave(before->account.measured_bytes());
}

}  // namespace gpumem::preload
