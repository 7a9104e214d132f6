#include "device_registry.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <utility>
#include <vector>

#include "assign_or_return.hpp"
#include "checked_mutex.hpp"
#include "driver_calls.hpp"
#include "gpumem/cuda_device.hpp"
#include "job_budget.hpp"
#include "log.hpp"
#include "logical_devices.hpp"
#include "other_contexts.hpp"
#include "process_accounting.hpp"
#include "process_settings.hpp"
#include "published_figures.hpp"
#include "served.hpp"
#include "shared_folder.hpp"

namespace gpumem::preload {

std::atomic<served_context*> open_devices[most_devices];
std::atomic<int> open_devices_end{0};

namespace {

checked_mutex opening;
std::array<std::atomic<CUresult>, most_devices> refusals;  // CUDA_SUCCESS: none
std::atomic<bool> cannot_serve{false};                     // the driver is too old, or lacks a function

/// Every device ever opened; keeps those that a reset closed reachable.
std::vector<served_context*>& all_ever() {
  static auto* const only = new std::vector<served_context*>;
  return *only;
}

/// Returns the device's own settings, for an allocator over that device alone.
result<settings> settings_of(int ordinal) {
  const process_settings& all = settings_of_process();
  if (!all.usable) return all.usable;
  settings options = all.options.for_device(ordinal);
  bool again = false;
  for (const served_context* d : all_ever()) again = again || d->ordinal == ordinal;
  if (again) options.trace_path = options.stats_path = "";  // the earlier allocator's files
  if (!options.trace_path.empty()) options.trace_path = path_of_pool(options.trace_path, ordinal);
  if (!options.stats_path.empty() && options.stats_path != "exit") {
    options.stats_path = path_of_pool(options.stats_path, ordinal);
  }
  return options;
}

status driver_failed(const char* call, CUresult error) {
  return {errc::device_error, fmt::format("{} failed with CUDA error {}", call, static_cast<int>(error))};
}

/// Opens the account that counts memory outside gpumem's segments, if the limit's scope is the process. A group without
/// a limit counts such memory, too.
status limit_everything(served_context& device, const settings& options) {
  const bool process = scope_of(options) == limit_scope::process;
  device.whole_process = process && (options.limit || in_job(options));
  if ((!options.limit && device.group == nullptr) || !(process || device.dedicated)) return {};
  if (device.memory->devices().size() != 1) {
    return {errc::bad_setting, fmt::format("GPUMEM_POOLS with {}: expected one or the other",
                                           process ? "GPUMEM_LIMIT_SCOPE=process" : "GPUMEM_IPC=1")};
  }
  const std::uint64_t used = device.whole_process ? process_bytes(device.cuda_device->info(), device.group.get()) : 0;
  const unserved_device* const before = unserved_account(device.ordinal);  // its counted bytes carry over
  const std::uint64_t counted = before != nullptr ? before->account.counted_bytes() : 0;
  const status opened =
      device.account.open(device.memory.get(), device.limit_bytes, headroom_of(options, device.whole_process),
                          used > counted ? used - counted : 0, device.group.get());
  const status held = opened ? job_can_hold(options, device.group.get()) : opened;
  if (held) now_served(device);  // a device that fails is destroyed, and the account before it goes on
  return held;
}

/// Joins the group that the allocator has already joined.
status join_group(served_context& device, const settings& options) {
  if (options.group.empty() || device.group != nullptr) return {};
  ASSIGN_OR_RETURN(const auto folder, shared_folder(options.shared_folder));
  result<std::shared_ptr<group_ledger>> joined =
      group_ledger::join(folder, options.group, device.cuda_device->info().uuid, std::nullopt);
  if (joined) device.group = *std::move(joined);
  return joined.why();
}

/// Makes the pools members of the job that `options` names: sets the limit and the group of `of_pool`.
status join_job(served_context& device, const settings& options, settings& of_pool) {
  std::size_t free_bytes = 0;
  std::size_t total_bytes = 0;
  if (const CUresult e = driver_call<entry::mem_get_info>(&free_bytes, &total_bytes); e != CUDA_SUCCESS) {
    return driver_failed("cuMemGetInfo", e);
  }
  ASSIGN_OR_RETURN(auto joined, open_budget(device.cuda_device->info(), options, free_bytes));
  device.group = std::move(joined.group);
  of_pool.limit = joined.limit;
  of_pool.group = options.job;
  of_pool.group_limit = {};
  return {};
}

struct peer_access {
  CUcontext memory_of;
  int ordinal;
};
/// Requires `opening`.
std::vector<peer_access>& all_peers() {
  static auto* const only = new std::vector<peer_access>;
  return *only;
}

void let_peer_reach(served_context& device, int ordinal) {
  if (const status ok = add_cuda_peer(*device.cuda_device, ordinal); !ok) {
    log_line(fmt::format("device {} cannot reach the memory of device {}: {}", ordinal, device.ordinal, ok.message()));
  }
}

/// Warns once about settings for missing devices, such as `GPUMEM_LIMIT_1` with a single card.
void note_missing_devices(const cuda_driver* driver) {
  static bool done = false;
  const result<int> count = cuda_device_count(driver);
  if (std::exchange(done, true) || !count) return;
  std::vector<int> ordinals;
  for (int i = 0; i < *count; ++i) ordinals.push_back(i);
  log_overrides_without_device(settings_of_process().options, ordinals);
}

result<served_context*> open_device(int ordinal, CUdevice handle, CUcontext context) {
  ASSIGN_OR_RETURN(const auto options, settings_of(ordinal));
  ASSIGN_OR_RETURN(const auto driver, inner_driver());
  note_missing_devices(driver);
  auto d = std::make_unique<served_context>();
  d->ordinal = ordinal;
  d->handle = handle;
  d->context = context;
  ASSIGN_OR_RETURN(auto cuda_device, open_cuda_device({.ordinal = ordinal, .driver = driver}));
  d->cuda_device = std::move(cuda_device);
  for (const peer_access& p : all_peers()) {
    if (p.memory_of == context) let_peer_reach(*d, p.ordinal);
  }
  device* const devices[] = {d->cuda_device.get()};
  settings of_pool = options;
  of_pool.scope.reset();  // applied by this file; the allocator must not see it
  if (in_job(options)) {
    if (status ok = join_job(*d, options, of_pool); !ok) return ok;
  }
  ASSIGN_OR_RETURN(auto memory, pooled_allocator::open(devices, of_pool));
  d->memory = std::move(memory);
  d->dedicated = options.ipc;
  for (const logical_device& l : d->memory->devices()) d->limit_bytes += l.limit_bytes;
  if (status ok = join_group(*d, options); !ok) return ok;
  if (status ok = limit_everything(*d, options); !ok) return ok;
  for (CUstream* const s : {&d->alloc_stream, &d->free_stream}) {
    if (const CUresult e = calls()->stream_create(s, CU_STREAM_NON_BLOCKING); e != CUDA_SUCCESS) {
      return driver_failed("cuStreamCreate", e);
    }
  }
  if (status ok = d->memory->stand_for_all_work({d->free_stream}); !ok) return ok;
  CUmemoryPool usual = nullptr;
  CUmemoryPool current = nullptr;
  if (calls()->default_pool(&usual, handle) == CUDA_SUCCESS &&
      calls()->current_pool(&current, handle) == CUDA_SUCCESS) {
    d->default_pool = usual;
    d->own_pool = usual != current;
  }
  all_ever().push_back(d.get());
  return d.release();
}

/// Publishes the figures of the open devices for `gpumem top`. Requires `opening`.
void publish_once() {
  static bool done = false;
  if (std::exchange(done, true)) return;
  const auto open_now = [] {
    std::vector<pooled_allocator*> allocators;
    for_each_device([&allocators](served_context& device) { allocators.push_back(device.memory.get()); });
    return allocators;
  };
  publish_until_exit(open_now, settings_of_process().options);
}

/// Whether `context` is its device's primary one, and which device that is.
bool is_primary(CUcontext context, CUdevice* device) {
  if (calls()->ctx_get_device(device) != CUDA_SUCCESS || *device < 0 || *device >= most_devices) return false;
  unsigned int flags = 0;
  int active = 0;
  if (calls()->primary_state(*device, &flags, &active) != CUDA_SUCCESS || active == 0) return false;
  CUcontext primary = nullptr;
  if (calls()->primary_retain(&primary, *device) != CUDA_SUCCESS) return false;
  calls()->primary_release(*device);
  return primary == context;
}

/// Requires `opening`.
void now_open(served_context& device) {
  tell_of_captures(device);
  open_devices[device.ordinal].store(&device, std::memory_order_release);
  if (open_devices_end.load(std::memory_order_relaxed) <= device.ordinal) {
    open_devices_end.store(device.ordinal + 1, std::memory_order_release);
  }
  publish_once();
}

served_context* open_current(CUcontext context, CUresult* refusal) {
  const mutex_lock lock{opening};
  const relaxed_capture relaxed;
  CUdevice handle{};
  if (!is_primary(context, &handle)) return nullptr;
  const int ordinal = handle;  // a CUdevice is its ordinal
  std::atomic<served_context*>& place = open_devices[ordinal];
  if (served_context* const existing = place.load(std::memory_order_acquire)) return existing;
  if (const CUresult before = refusals[static_cast<std::size_t>(ordinal)]; before != CUDA_SUCCESS) {
    *refusal = before;
    return nullptr;
  }
  const result<served_context*> made = open_device(ordinal, handle, context);
  if (!made) {
    const bool ours = made.code() == errc::bad_setting || made.code() == errc::corrupt;
    if (ours || guards_memory()) {  // with a limit, the program must not fall back to the driver
      log_line(
          fmt::format("device {}: {}; every allocation fails until that is mended", ordinal, made.why().message()));
      *refusal = refusals[static_cast<std::size_t>(ordinal)] = CUDA_ERROR_OUT_OF_MEMORY;
    } else {
      log_line(fmt::format("device {} is left to the driver: {}", ordinal, made.why().message()));
      cannot_serve = true;
    }
    return nullptr;
  }
  now_open(**made);
  return *made;
}

/// Opens a device that the program has not used yet, if its policy takes all memory. Creates its primary context and
/// keeps it until the process ends or resets it. Requires `opening`.
status open_unused(int ordinal) {
  if (open_devices[ordinal].load(std::memory_order_relaxed) != nullptr) return {};
  ASSIGN_OR_RETURN(const auto options, settings_of(ordinal));
  if (!takes_everything(options)) return {};
  const CUdevice handle{ordinal};  // a CUdevice is its ordinal
  CUcontext context = nullptr;
  if (const CUresult e = calls()->primary_retain(&context, handle); e != CUDA_SUCCESS) {
    return driver_failed("cuDevicePrimaryCtxRetain", e);
  }
  status opened;
  if (const CUresult e = calls()->ctx_push_current(context); e == CUDA_SUCCESS) {
    const result<served_context*> made = open_device(ordinal, handle, context);
    if (made) now_open(**made);
    opened = made.why();
    CUcontext popped = nullptr;
    calls()->ctx_pop_current(&popped);
  } else {
    opened = driver_failed("cuCtxPushCurrent", e);
  }
  if (!opened) calls()->primary_release(handle);
  return opened;
}

/// Opens every visible device whose policy takes all memory.
void open_unused_devices() {
  const mutex_lock lock{opening};
  const relaxed_capture relaxed;
  const result<const cuda_driver*> driver = inner_driver();
  const result<int> count = driver ? cuda_device_count(*driver) : driver.why();
  if (!count) return log_line(fmt::format("the other devices are not taken yet: {}", count.why().message()));
  for (int ordinal = 0; ordinal < std::min(*count, most_devices); ++ordinal) {
    if (const status opened = open_unused(ordinal); !opened) {
      log_line(fmt::format("device {} is not taken yet: {}", ordinal, opened.message()));
    }
  }
}

/// Refuses requests if settings need gpumem and gpumem cannot use the driver.
CUresult refuse_driver() {
  static const bool said = [] {
    log_line(
        "the CUDA driver is too old for gpumem to hold a limit, pools or a group: expected one of CUDA 12.0 or later; "
        "every allocation fails");
    return true;
  }();
  static_cast<void>(said);
  return CUDA_ERROR_OUT_OF_MEMORY;
}

}  // namespace

// The flag is never reset: a device that is reset later opens at its next use, as any device does.
void take_every_device(const served_context& used) noexcept {
  static std::atomic<bool> untouched{true};
  if (!untouched.load(std::memory_order_relaxed) || !untouched.exchange(false, std::memory_order_acq_rel)) return;
  open_unused_devices();
  for_each_device([&used](const served_context& device) {
    if (&device != &used && !device.dedicated) device.memory->preallocate();
  });
}

relaxed_capture::relaxed_capture() noexcept { exchanged_ = calls()->exchange_capture_mode(&mode_) == CUDA_SUCCESS; }
relaxed_capture::~relaxed_capture() {
  if (exchanged_) calls()->exchange_capture_mode(&mode_);
}

served_context* current_device(CUresult* refusal) noexcept {
  *refusal = CUDA_SUCCESS;
  if (calls() == nullptr) {
    if (guards_memory() && driver_missing() != CUDA_ERROR_NO_DEVICE) *refusal = refuse_driver();
    return nullptr;
  }
  if (cannot_serve.load(std::memory_order_relaxed)) return nullptr;
  CUcontext context = nullptr;
  if (calls()->ctx_get_current(&context) != CUDA_SUCCESS || context == nullptr) return nullptr;
  const int end = open_devices_end.load(std::memory_order_acquire);
  for (int i = 0; i < end; ++i) {
    served_context* const d = open_devices[i].load(std::memory_order_acquire);
    if (d != nullptr && d->context == context)
      return d->cuda_device->condition() == device_condition::usable ? d : nullptr;
  }
  return open_current(context, refusal);
}

void peer_may_reach(CUcontext memory_of, int ordinal) noexcept {
  const mutex_lock lock{opening};
  all_peers().push_back({memory_of, ordinal});
  const relaxed_capture relaxed;
  for_each_device([&](served_context& device) {
    if (device.context == memory_of) let_peer_reach(device, ordinal);
  });
}

served_context* holder_of(CUdeviceptr address, block_info* block) noexcept {
  served_context* holder = nullptr;
  for_each_device([&](served_context& device) {
    if (holder != nullptr) return;
    const result<block_info> found = device.memory->describe(reinterpret_cast<const void*>(address));
    if (!found) return;
    holder = &device;
    *block = *found;
  });
  return holder;
}

// A `served_context` is never deleted, because another thread may be using it.
served_context* forget_device(CUdevice device) noexcept {
  if (device < 0 || device >= most_devices) return nullptr;
  const mutex_lock lock{opening};
  refusals[static_cast<std::size_t>(device)] = CUDA_SUCCESS;
  return open_devices[device].exchange(nullptr, std::memory_order_acq_rel);
}

void leave_group(served_context& device) noexcept {
  if (device.group == nullptr) return;
  std::uint64_t held = device.account.counted_bytes();
  for (const logical_device& l : device.memory->devices()) {
    if (const result<statistics> s = device.memory->stats(l.ordinal)) held += s->reserved_bytes;
  }
  device.group->give_back(held);
  device.group->leave(device.account.measured_bytes());
}

bool give_back_idle() noexcept {
  std::uint64_t returned = 0;
  for_each_device([&](served_context& device) {
    for (const logical_device& l : device.memory->devices()) {
      if (const result<trim_result> done = device.memory->trim(l.ordinal)) returned += done->returned_bytes;
    }
  });
  return returned != 0;
}

}  // namespace gpumem::preload
