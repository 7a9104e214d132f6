// The driver as gpumem itself calls it: its own functions, except those that must know of gpumem's streams and of the
// limit on the process.
#include <atomic>
#include <string_view>

#include "device_registry.hpp"
#include "driver_calls.hpp"
#include "driver_file.hpp"
#include "gpumem/cuda_device.hpp"
#include "process_accounting.hpp"
#include "served.hpp"

namespace gpumem::preload {
namespace {

// Atomic, because each device that opens stores them again while other devices read them.
std::atomic<PFN_cuStreamWaitEvent_v3020> wait_on_stream = nullptr;
std::atomic<bool> records_on_context = false;  // since CUDA 12.5

CUresult CUDAAPI stream_waits(CUstream h_stream, CUevent h_event, unsigned int flags) {
  const CUresult done = wait_on_stream.load()(h_stream, h_event, flags);
  for_each_device([&](served_context& device) {
    if (device.alloc_stream == h_stream) device.waits.fetch_add(1, std::memory_order_acq_rel);
  });
  return done;
}

std::atomic<PFN_cuMemAlloc_v3020> take_memory = nullptr;
std::atomic<PFN_cuMemCreate_v10020> take_pages = nullptr;

/// As `fits_process_limit`, for the current device; true while that device is being opened.
bool fits_current_device(std::uint64_t bytes) {
  CUcontext context = nullptr;
  if (calls()->ctx_get_current(&context) != CUDA_SUCCESS) return true;
  bool fits = true;
  for_each_device([&](const served_context& device) {
    fits = fits && (device.context != context || !device.whole_process ||
                    fits_process_limit(device.cuda_device->info(), device.limit_bytes, bytes));
  });
  return fits;
}

thread_local bool driver_refused = false;

/// Calls the driver to grow a pool, unless the process's memory, by NVML, leaves no room for `bytes` in its limit.
template <typename Function, typename... Arguments>
CUresult grow(std::uint64_t bytes, Function&& function, Arguments... arguments) {
  driver_refused = false;
  if (!fits_current_device(bytes)) return CUDA_ERROR_OUT_OF_MEMORY;
  const CUresult e = function(arguments...);
  driver_refused = e == CUDA_ERROR_OUT_OF_MEMORY;
  return e;
}
CUresult CUDAAPI allocate_segment(CUdeviceptr* dptr, std::size_t bytes) {
  return grow(bytes, take_memory.load(), dptr, bytes);
}
CUresult CUDAAPI create_pages(CUmemGenericAllocationHandle* handle, std::size_t bytes, const CUmemAllocationProp* prop,
                              unsigned long long flags) {
  return grow(bytes, take_pages.load(), handle, bytes, prop, flags);
}

template <typename Pointer>
void put(std::atomic<Pointer>& real, void** function, Pointer ours) {
  real = reinterpret_cast<Pointer>(*function);
  *function = reinterpret_cast<void*>(ours);
}

CUresult CUDAAPI inner_get_proc_address(const char* name, void** function, int version, cuuint64_t flags,
                                        CUdriverProcAddressQueryResult* how) {
  const CUresult e = driver_get_proc_address()(name, function, version, flags, how);
  if (e != CUDA_SUCCESS || *function == nullptr) return e;
  const std::string_view function_name = name;
  if (function_name == "cuStreamWaitEvent") put(wait_on_stream, function, &stream_waits);
  if (function_name == "cuMemAlloc") put(take_memory, function, &allocate_segment);
  if (function_name == "cuMemCreate") put(take_pages, function, &create_pages);
  if (function_name == "cuCtxRecordEvent") records_on_context = true;
  return e;
}

}  // namespace

result<const cuda_driver*> inner_driver() {
  return resolve_cuda_driver(reinterpret_cast<void*>(&inner_get_proc_address));
}

bool has_context_events() noexcept { return records_on_context; }

bool refused_by_driver() noexcept { return driver_refused; }

}  // namespace gpumem::preload
