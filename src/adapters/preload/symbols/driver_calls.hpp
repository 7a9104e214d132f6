// Driver functions that the shim calls for itself and does not replace.
#pragma once

#include "driver_file.hpp"

namespace gpumem::preload {

struct driver_calls {
  PFN_cuCtxGetCurrent_v4000 ctx_get_current = nullptr;
  PFN_cuCtxPushCurrent_v4000 ctx_push_current = nullptr;
  PFN_cuCtxPopCurrent_v4000 ctx_pop_current = nullptr;
  PFN_cuCtxGetDevice_v2000 ctx_get_device = nullptr;
  PFN_cuDevicePrimaryCtxGetState_v7000 primary_state = nullptr;
  PFN_cuDevicePrimaryCtxRetain_v7000 primary_retain = nullptr;
  PFN_cuDevicePrimaryCtxRelease_v11000 primary_release = nullptr;
  PFN_cuCtxSynchronize_v2000 ctx_synchronize = nullptr;
  PFN_cuStreamCreate_v2000 stream_create = nullptr;
  PFN_cuStreamSynchronize_v2000 stream_synchronize = nullptr;
  PFN_cuStreamGetCtx_v9020 stream_get_ctx = nullptr;
  PFN_cuStreamIsCapturing_v10000 stream_is_capturing = nullptr;
  PFN_cuThreadExchangeStreamCaptureMode_v10010 exchange_capture_mode = nullptr;
  PFN_cuDeviceGetDefaultMemPool_v11020 default_pool = nullptr;
  PFN_cuDeviceGetGraphMemAttribute_v11040 graph_memory = nullptr;  ///< may be null
  PFN_cuDeviceGetMemPool_v11020 current_pool = nullptr;
};

/// Returns all of them, looked up at the first call; null if there is no driver, or one that gpumem cannot use.
const driver_calls* calls() noexcept;

}  // namespace gpumem::preload
