/// Real GPUs, through the CUDA driver API.
///
/// The driver is looked for at run time: this header and the library need neither CUDA nor a driver. Where there is
/// none, or it is too old, or has no GPU, the status says which and what to do. All functions may be called from any
/// thread.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "gpumem/device.hpp"
#include "gpumem/export.h"
#include "gpumem/status.hpp"

namespace GPUMEM_API gpumem {

/// The legacy default stream, and the calling thread's own default stream (what `--default-stream per-thread` makes of
/// stream 0; that option does not reach a library, so such a program names its stream).
inline const stream_ref legacy_stream{nullptr};
inline const stream_ref per_thread_stream{reinterpret_cast<void*>(2)};  // CU_STREAM_PER_THREAD

/// The driver's functions; src/device/cuda_driver.hpp has the table.
struct cuda_driver;

/// The driver of this machine, loaded and initialised at the first call of the process: libcuda.so.1 as the dynamic
/// linker finds it, or the file that GPUMEM_CUDA_DRIVER names. `device_error` when there is none, or it is older than
/// CUDA 12.0 (both versions are named), or it has no GPU.
result<const cuda_driver*> load_cuda_driver();

/// A table from a `cuGetProcAddress_v2` of the caller's own, for tests and interposers. It is never freed.
result<const cuda_driver*> resolve_cuda_driver(void* get_proc_address_v2);

/// GPUs that the driver shows to this process, CUDA_VISIBLE_DEVICES applied.
result<int> cuda_device_count(const cuda_driver* driver = nullptr);

struct cuda_config {
  int ordinal = 0;                      ///< among what the driver shows
  const cuda_driver* driver = nullptr;  ///< null: `load_cuda_driver`
  std::vector<int> peers{};             ///< ordinals of devices that shall reach mapped memory, too
};

/// One GPU, over its primary context, which is retained by the first call that needs it and not before: opening a
/// device takes none of its memory. `wrong_device` names an ordinal out of range or a peer that cannot be one.
///
/// After `fork` the child's calls fail with `device_error`, and so do all calls once the program has reset the device
/// (`condition()` tells which). At process exit the destructor makes no call.
result<std::unique_ptr<device>> open_cuda_device(const cuda_config& config = {});

/// From here on the device with that ordinal reaches the mapped memory of `of`, too, which `open_cuda_device` made:
/// what is mapped already and what will be. `cuCtxEnablePeerAccess` alone does not reach mapped memory.
status add_cuda_peer(device& of, int ordinal);

}  // namespace gpumem
