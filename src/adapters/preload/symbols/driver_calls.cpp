#include "driver_calls.hpp"

namespace gpumem::preload {
namespace {

template <typename Pointer>
bool find(PFN_cuGetProcAddress_v12000 ask, Pointer& pointer, const char* name, int version) {
  void* found = nullptr;
  CUdriverProcAddressQueryResult how{};
  if (ask(name, &found, version, CU_GET_PROC_ADDRESS_LEGACY_STREAM, &how) != CUDA_SUCCESS) return false;
  pointer = reinterpret_cast<Pointer>(found);
  return found != nullptr;
}

const driver_calls* find_all() {
  const PFN_cuGetProcAddress_v12000 ask = driver_get_proc_address();
  static driver_calls all;
  const bool complete = ask != nullptr && find(ask, all.ctx_get_current, "cuCtxGetCurrent", 4000) &&
                        find(ask, all.ctx_push_current, "cuCtxPushCurrent", 4000) &&
                        find(ask, all.ctx_pop_current, "cuCtxPopCurrent", 4000) &&
                        find(ask, all.ctx_get_device, "cuCtxGetDevice", 2000) &&
                        find(ask, all.primary_state, "cuDevicePrimaryCtxGetState", 7000) &&
                        find(ask, all.primary_retain, "cuDevicePrimaryCtxRetain", 7000) &&
                        find(ask, all.primary_release, "cuDevicePrimaryCtxRelease", 11000) &&
                        find(ask, all.ctx_synchronize, "cuCtxSynchronize", 2000) &&
                        find(ask, all.stream_create, "cuStreamCreate", 2000) &&
                        find(ask, all.stream_synchronize, "cuStreamSynchronize", 2000) &&
                        find(ask, all.stream_get_ctx, "cuStreamGetCtx", 9020) &&
                        find(ask, all.stream_is_capturing, "cuStreamIsCapturing", 10000) &&
                        find(ask, all.exchange_capture_mode, "cuThreadExchangeStreamCaptureMode", 10010) &&
                        find(ask, all.default_pool, "cuDeviceGetDefaultMemPool", 11020) &&
                        find(ask, all.current_pool, "cuDeviceGetMemPool", 11020);
  if (complete) find(ask, all.graph_memory, "cuDeviceGetGraphMemAttribute", 11040);
  return complete ? &all : nullptr;
}

}  // namespace

const driver_calls* calls() noexcept {
  static const driver_calls* const only = find_all();
  return only;
}

}  // namespace gpumem::preload
