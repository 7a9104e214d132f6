/// Real GPUs, through the CUDA driver API.
///
/// The library loads the driver at run time, so this header and the library need neither CUDA nor a driver. If the
/// driver is missing, too old, or has no GPU, the status says which and what to do. All functions may be called from
/// any thread.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "gpumem/device.hpp"
#include "gpumem/export.h"
#include "gpumem/status.hpp"

namespace GPUMEM_API gpumem {

/// The legacy default stream, and the calling thread's own default stream. `--default-stream per-thread` redefines
/// stream 0 in the program, but not in a library, so such a program must name its stream.
inline const stream_ref legacy_stream{nullptr};
inline const stream_ref per_thread_stream{reinterpret_cast<void*>(2)};  // CU_STREAM_PER_THREAD

/// The driver's functions; src/device/cuda/cuda_driver.hpp has the table.
struct cuda_driver;

/// The driver of this machine, loaded and initialised by the first call in the process: libcuda.so.1 as the dynamic
/// linker finds it, or the file named by GPUMEM_CUDA_DRIVER. `device_error` if there is none, if it is older than CUDA
/// 12.0 (the message has both versions), or if it has no GPU.
result<const cuda_driver*> load_cuda_driver();

/// A table filled through the caller's own `cuGetProcAddress_v2`, for tests and interposers. It is never freed.
result<const cuda_driver*> resolve_cuda_driver(void* get_proc_address_v2);

/// The number of GPUs that the driver shows to this process, after CUDA_VISIBLE_DEVICES.
result<int> cuda_device_count(const cuda_driver* driver = nullptr);

struct cuda_config {
  int ordinal = 0;                      ///< among the devices that the driver shows
  const cuda_driver* driver = nullptr;  ///< null: `load_cuda_driver`
  std::vector<int> peers{};             ///< ordinals of other devices with access to mapped memory
};

/// Opens a GPU over its primary context. The first call that needs the context retains it, so opening a device takes
/// none of its memory. `wrong_device` names an ordinal out of range or an impossible peer.
///
/// The calls of a forked child fail with `device_error`, and so do all calls after the program reset the device
/// (`condition()` says which). At process exit the destructor makes no call.
result<std::unique_ptr<device>> open_cuda_device(const cuda_config& config = {});

/// Gives the device with this ordinal access to the mapped memory of `target`, present and future. `target` comes from
/// `open_cuda_device`. `cuCtxEnablePeerAccess` alone does not cover mapped memory.
status add_cuda_peer(device& target, int ordinal);

}  // namespace gpumem
