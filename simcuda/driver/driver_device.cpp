// The simulated driver: the driver itself, its devices and contexts.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>

#include "driver_state.hpp"
#include "driver_table.hpp"
#include "run_recorder.hpp"
#include "shared_cards_lock.hpp"

using namespace gpumem::simcuda;  // NOLINT: the driver's functions are global

extern "C" {

// The headers declare it for the toolkit only.
CUresult CUDAAPI cuCtxCreate_v2(CUcontext* pctx, unsigned int flags, CUdevice device);

/// Shares the cards under the name in SIMCUDA_SHARED. On failure prints the reason on stderr and returns false.
static bool join_shared_cards() {
  driver_state& w = the_driver_state();
  const char* const name = std::getenv("SIMCUDA_SHARED");
  if (w.initialised || w.shared != nullptr || name == nullptr || *name == '\0') return true;
  auto joined = std::make_unique<shared_cards>();
  int cards = 0;  // on the machine, visible here or not
  for (const auto& g : w.gpus) cards = std::max(cards, g->card + 1);
  if (const char* const all = std::getenv("SIMCUDA_DEVICES"); all != nullptr) cards = std::max(cards, std::atoi(all));
  if (const std::string why = joined->join(name, cards, w.config.bytes); !why.empty()) {
    std::fprintf(stderr, "simcuda: the shared cards %s: %s\n", name, why.c_str());
    return false;
  }
  w.shared = std::move(joined);
  return true;
}

CUresult CUDAAPI cuInit(unsigned int flags) {
  SIMCUDA_ENTER_EARLY("cuInit");
  if (flags != 0) return CUDA_ERROR_INVALID_VALUE;
  if (the_driver_state().forked) return CUDA_ERROR_NOT_INITIALIZED;
  if (the_driver_state().gpus.empty()) return CUDA_ERROR_NO_DEVICE;
  if (!join_shared_cards()) return CUDA_ERROR_SYSTEM_NOT_READY;
  open_report();
  refuse_forked_children();
  the_driver_state().initialised = true;
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuDriverGetVersion(int* version) {
  SIMCUDA_ENTER_EARLY("cuDriverGetVersion");
  *version = the_driver_state().config.driver_version;
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuGetProcAddress_v2(const char* symbol, void** function, int version, cuuint64_t flags,
                                     CUdriverProcAddressQueryResult* how) {
  SIMCUDA_ENTER_EARLY("cuGetProcAddress");
  if (symbol == nullptr || function == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const found_function found = find_function(symbol, version, the_driver_state().config.driver_version,
                                             (flags & CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM) != 0);
  *function = found.function;
  if (found.function != nullptr) {
    if (how != nullptr) *how = CU_GET_PROC_ADDRESS_SUCCESS;
    return CUDA_SUCCESS;
  }
  if (how != nullptr) {
    *how = found.known ? CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT : CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
  }
  return how != nullptr ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
}

CUresult CUDAAPI cuDeviceGetCount(int* count) {
  SIMCUDA_ENTER("cuDeviceGetCount");
  *count = static_cast<int>(the_driver_state().gpus.size());
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuDeviceGet(CUdevice* device, int ordinal) {
  SIMCUDA_ENTER("cuDeviceGet");
  if (device_of(ordinal) == nullptr) return CUDA_ERROR_INVALID_DEVICE;
  *device = ordinal;
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuDeviceGetName(char* name, int bytes, CUdevice device) {
  SIMCUDA_ENTER("cuDeviceGetName");
  SIMCUDA_FIND_DEVICE(g, device);
  std::strncpy(name, g->sim->info().name.c_str(), static_cast<std::size_t>(bytes));
  name[bytes - 1] = '\0';
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuDeviceGetUuid_v2(CUuuid* uuid, CUdevice device) {
  SIMCUDA_ENTER("cuDeviceGetUuid");
  SIMCUDA_FIND_DEVICE(g, device);
  *uuid = {};
  uuid->bytes[sizeof uuid->bytes - 1] = static_cast<char>(g->card);
  return CUDA_SUCCESS;
}

// Its name before CUDA 11.4, which the driver still exports.
#undef cuDeviceGetUuid
CUresult CUDAAPI cuDeviceGetUuid(CUuuid* uuid, CUdevice device) { return cuDeviceGetUuid_v2(uuid, device); }

CUresult CUDAAPI cuDeviceTotalMem_v2(std::size_t* bytes, CUdevice device) {
  SIMCUDA_ENTER("cuDeviceTotalMem");
  SIMCUDA_FIND_DEVICE(g, device);
  *bytes = g->sim->info().total_bytes;
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuDeviceCanAccessPeer(int* can, CUdevice device, CUdevice peer) {
  SIMCUDA_ENTER("cuDeviceCanAccessPeer");
  if (device_of(device) == nullptr || device_of(peer) == nullptr) return CUDA_ERROR_INVALID_DEVICE;
  *can = device != peer ? 1 : 0;
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuDevicePrimaryCtxRetain(CUcontext* context, CUdevice device) {
  SIMCUDA_ENTER("cuDevicePrimaryCtxRetain");
  SIMCUDA_FIND_DEVICE(g, device);
  if (g->primary == nullptr) {
    driver_state& w = the_driver_state();
    if (w.config.context_bytes != 0) {
      const shared_cards_lock turn{*g};
      if (const auto taken = g->sim->alloc(w.config.context_bytes); !taken) {
        note_refused(*g, "cuDevicePrimaryCtxRetain", w.config.context_bytes);
        return error_of(taken.why());
      }
      note_charge(*g, charge::context, w.config.context_bytes);
    }
    w.contexts.push_back(std::make_unique<CUctx_st>());
    g->primary = w.contexts.back().get();
    g->primary->device = g;
    g->primary->id = w.next_id++;
    ++g->contexts_made;
  }
  ++g->retained;
  *context = g->primary;
  return CUDA_SUCCESS;
}

// "The context is automatically reset once the last reference to it is released."
CUresult CUDAAPI cuDevicePrimaryCtxRelease_v2(CUdevice device) {
  SIMCUDA_ENTER("cuDevicePrimaryCtxRelease");
  SIMCUDA_FIND_DEVICE(g, device);
  if (g->retained == 0) return CUDA_ERROR_INVALID_CONTEXT;
  if (--g->retained == 0 && g->primary != nullptr) destroy_context(g->primary);
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuDevicePrimaryCtxReset_v2(CUdevice device) {
  SIMCUDA_ENTER("cuDevicePrimaryCtxReset");
  SIMCUDA_FIND_DEVICE(g, device);
  if (g->primary == nullptr) return CUDA_SUCCESS;
  const unsigned retained = g->retained;
  destroy_context(g->primary);
  g->retained = retained;
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuDevicePrimaryCtxGetState(CUdevice device, unsigned int* flags, int* active) {
  SIMCUDA_ENTER("cuDevicePrimaryCtxGetState");
  SIMCUDA_FIND_DEVICE(g, device);
  *flags = 0;
  *active = g->primary != nullptr ? 1 : 0;
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuCtxGetCurrent(CUcontext* context) {
  if (const CUresult refused = enter_unlocked(own_call::get_current); refused != CUDA_SUCCESS) return refused;
  *context = current_context();
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuCtxSetCurrent(CUcontext context) {
  SIMCUDA_ENTER("cuCtxSetCurrent");
  thread_state& me = this_thread();
  if (!me.contexts.empty()) me.contexts.pop_back();
  if (context != nullptr) me.contexts.push_back(context);
  note_current();
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuCtxPushCurrent_v2(CUcontext context) {
  SIMCUDA_ENTER("cuCtxPushCurrent");
  if (context == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
  this_thread().contexts.push_back(context);
  note_current();
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuCtxPopCurrent_v2(CUcontext* context) {
  SIMCUDA_ENTER("cuCtxPopCurrent");
  thread_state& me = this_thread();
  if (me.contexts.empty()) return CUDA_ERROR_INVALID_CONTEXT;
  if (context != nullptr) *context = me.contexts.back();
  me.contexts.pop_back();
  note_current();
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuCtxGetDevice(CUdevice* device) {
  if (const CUresult refused = enter_unlocked(own_call::get_device); refused != CUDA_SUCCESS) return refused;
  gpu* current_gpu = nullptr;
  if (const CUresult e = current(&current_gpu); e != CUDA_SUCCESS) return e;
  *device = current_gpu->ordinal;
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuCtxGetId(CUcontext context, unsigned long long* id) {
  SIMCUDA_ENTER("cuCtxGetId");
  if (context == nullptr) {
    gpu* device = nullptr;
    if (const CUresult e = current(&device, &context); e != CUDA_SUCCESS) return e;
  }
  if (!context->alive) return CUDA_ERROR_CONTEXT_IS_DESTROYED;
  *id = context->id;
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuCtxSynchronize() {
  SIMCUDA_ENTER("cuCtxSynchronize");
  SIMCUDA_FIND_CURRENT(device);
  const std::uint32_t context = current_context()->number;
  const CUresult done = error_of(context == 0 ? device->sim->synchronize() : device->sim->synchronize_context(context));
  if (done == CUDA_SUCCESS) device->pool->synchronised();
  return done;
}

// "Returns CUDA_ERROR_INVALID_CONTEXT if there is no current context, peerContext is not a valid context, or if the
// current context is peerContext."
CUresult CUDAAPI cuCtxEnablePeerAccess(CUcontext peer, unsigned int flags) {
  SIMCUDA_ENTER("cuCtxEnablePeerAccess");
  SIMCUDA_FIND_CURRENT(device);
  CUcontext const context = current_context();
  if (flags != 0) return CUDA_ERROR_INVALID_VALUE;
  if (peer == nullptr || !peer->alive || peer == context) return CUDA_ERROR_INVALID_CONTEXT;
  return context->peers.insert(peer).second ? CUDA_SUCCESS : CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED;
}

CUresult CUDAAPI cuCtxDisablePeerAccess(CUcontext peer) {
  SIMCUDA_ENTER("cuCtxDisablePeerAccess");
  SIMCUDA_FIND_CURRENT(device);
  CUcontext const context = current_context();
  return context->peers.erase(peer) != 0 ? CUDA_SUCCESS : CUDA_ERROR_PEER_ACCESS_NOT_ENABLED;
}

// --- further contexts -----------------------------------------------------------------------------------------------

CUresult CUDAAPI cuCtxCreate_v2(CUcontext* pctx, unsigned int /*flags*/, CUdevice device) {
  SIMCUDA_ENTER("cuCtxCreate");
  SIMCUDA_FIND_DEVICE(g, device);
  driver_state& w = the_driver_state();
  w.contexts.push_back(std::make_unique<CUctx_st>());
  CUcontext made = w.contexts.back().get();
  made->device = g;
  made->id = w.next_id++;
  made->number = g->next_context++;
  made->legacy = g->sim->create_stream({.legacy = true, .context = made->number});
  this_thread().contexts.push_back(made);
  note_current();
  *pctx = made;
  return CUDA_SUCCESS;
}

#if CUDA_VERSION >= 12050
CUresult CUDAAPI cuCtxCreate_v4(CUcontext* pctx, CUctxCreateParams* /*parameters*/, unsigned int flags,
                                CUdevice device) {
  return cuCtxCreate_v2(pctx, flags, device);
}
#endif

// "If ctx is current to the calling thread then ctx will also be popped from the current thread's context stack."
CUresult CUDAAPI cuCtxDestroy_v2(CUcontext context) {
  SIMCUDA_ENTER("cuCtxDestroy");
  if (context == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (!context->alive) return undefined_use("a context that is destroyed");
  if (context->device->primary == context) return CUDA_ERROR_INVALID_CONTEXT;
  thread_state& me = this_thread();
  if (!me.contexts.empty() && me.contexts.back() == context) me.contexts.pop_back();
  note_current();
  destroy_context(context);
  return CUDA_SUCCESS;
}

}  // extern "C"
