// The double's functions about the driver itself, its devices and contexts.
#include <cstring>

#include "driver_table.hpp"
#include "world.hpp"

using namespace gpumem::simcuda;  // NOLINT: the driver's functions are global

namespace {

gpu* device_of(CUdevice d) {
  world& w = the_world();
  return d >= 0 && static_cast<std::size_t>(d) < w.gpus.size() ? w.gpus[static_cast<std::size_t>(d)].get() : nullptr;
}

}  // namespace

extern "C" {

CUresult CUDAAPI cuInit(unsigned int flags) {
  SIMCUDA_ENTER_EARLY("cuInit");
  if (flags != 0) return CUDA_ERROR_INVALID_VALUE;
  if (the_world().gpus.empty()) return CUDA_ERROR_NO_DEVICE;
  the_world().initialised = true;
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuDriverGetVersion(int* version) {
  SIMCUDA_ENTER_EARLY("cuDriverGetVersion");
  *version = the_world().config.driver_version;
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuGetProcAddress_v2(const char* symbol, void** function, int version, cuuint64_t flags,
                                     CUdriverProcAddressQueryResult* how) {
  SIMCUDA_ENTER_EARLY("cuGetProcAddress");
  if (symbol == nullptr || function == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const found_function found = find_function(symbol, version, the_world().config.driver_version,
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
  *count = static_cast<int>(the_world().gpus.size());
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
  const gpu* const g = device_of(device);
  if (g == nullptr) return CUDA_ERROR_INVALID_DEVICE;
  std::strncpy(name, g->sim->info().name.c_str(), static_cast<std::size_t>(bytes));
  name[bytes - 1] = '\0';
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuDeviceGetUuid_v2(CUuuid* uuid, CUdevice device) {
  SIMCUDA_ENTER("cuDeviceGetUuid");
  const gpu* const g = device_of(device);
  if (g == nullptr) return CUDA_ERROR_INVALID_DEVICE;
  *uuid = {};
  uuid->bytes[sizeof uuid->bytes - 1] = static_cast<char>(g->card);
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuDeviceTotalMem_v2(std::size_t* bytes, CUdevice device) {
  SIMCUDA_ENTER("cuDeviceTotalMem");
  const gpu* const g = device_of(device);
  if (g == nullptr) return CUDA_ERROR_INVALID_DEVICE;
  *bytes = g->sim->info().total_bytes;
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuDeviceGetAttribute(int* value, CUdevice_attribute which, CUdevice device) {
  SIMCUDA_ENTER("cuDeviceGetAttribute");
  const gpu* const g = device_of(device);
  if (g == nullptr) return CUDA_ERROR_INVALID_DEVICE;
  switch (which) {
    case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR:
      *value = g->sim->info().compute_major;
      break;
    case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR:
      *value = g->sim->info().compute_minor;
      break;
    case CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT:
      *value = 132;
      break;
    case CU_DEVICE_ATTRIBUTE_WARP_SIZE:
      *value = 32;
      break;
    case CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK:
    case CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_X:
    case CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Y:
      *value = 1024;
      break;
    case CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Z:
      *value = 64;
      break;
    case CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_X:
      *value = 0x7fff'ffff;
      break;
    case CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Y:
    case CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Z:
      *value = 65'535;
      break;
    case CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR:
      *value = 2048;
      break;
    case CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK:
      *value = 48 << 10;
      break;
    case CU_DEVICE_ATTRIBUTE_MANAGED_MEMORY:
    case CU_DEVICE_ATTRIBUTE_CONCURRENT_KERNELS:
    case CU_DEVICE_ATTRIBUTE_ASYNC_ENGINE_COUNT:
    case CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED:
    case CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED:
    case CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED:
    case CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING:
      *value = 1;
      break;
    default:
      *value = 0;
  }
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
  gpu* const g = device_of(device);
  if (g == nullptr) return CUDA_ERROR_INVALID_DEVICE;
  if (g->primary == nullptr) {
    world& w = the_world();
    if (w.config.context_bytes != 0) {
      if (const auto taken = g->sim->alloc(w.config.context_bytes); !taken) return error_of(taken.why());
    }
    w.contexts.push_back(std::make_unique<CUctx_st>());
    g->primary = w.contexts.back().get();
    g->primary->on = g;
    g->primary->id = w.next_id++;
  }
  ++g->retained;
  *context = g->primary;
  return CUDA_SUCCESS;
}

static CUresult destroy_primary(gpu& g) {
  if (g.primary == nullptr) return CUDA_SUCCESS;
  world& w = the_world();
  g.primary->alive = false;
  for (const auto& s : w.streams) {
    if (s->context == g.primary) {
      s->context = nullptr;
      w.spare_streams.push_back(s.get());
    }
  }
  for (const auto& e : w.events) {
    if (e->context == g.primary) e->alive = false;
  }
  g.primary = nullptr;
  remake(g);
  return CUDA_SUCCESS;
}

// The context outlives its last release (a driver's would be destroyed), so that a test sees what was left on it.
CUresult CUDAAPI cuDevicePrimaryCtxRelease_v2(CUdevice device) {
  SIMCUDA_ENTER("cuDevicePrimaryCtxRelease");
  gpu* const g = device_of(device);
  if (g == nullptr) return CUDA_ERROR_INVALID_DEVICE;
  if (g->retained == 0) return CUDA_ERROR_INVALID_CONTEXT;
  --g->retained;
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuDevicePrimaryCtxReset_v2(CUdevice device) {
  SIMCUDA_ENTER("cuDevicePrimaryCtxReset");
  gpu* const g = device_of(device);
  if (g == nullptr) return CUDA_ERROR_INVALID_DEVICE;
  return destroy_primary(*g);
}

CUresult CUDAAPI cuDevicePrimaryCtxGetState(CUdevice device, unsigned int* flags, int* active) {
  SIMCUDA_ENTER("cuDevicePrimaryCtxGetState");
  const gpu* const g = device_of(device);
  if (g == nullptr) return CUDA_ERROR_INVALID_DEVICE;
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
  gpu* on = nullptr;
  if (const CUresult e = current(&on); e != CUDA_SUCCESS) return e;
  *device = on->ordinal;
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuCtxGetId(CUcontext context, unsigned long long* id) {
  SIMCUDA_ENTER("cuCtxGetId");
  if (context == nullptr) {
    gpu* on = nullptr;
    if (const CUresult e = current(&on, &context); e != CUDA_SUCCESS) return e;
  }
  if (!context->alive) return CUDA_ERROR_CONTEXT_IS_DESTROYED;
  *id = context->id;
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuCtxSynchronize() {
  SIMCUDA_ENTER("cuCtxSynchronize");
  gpu* on = nullptr;
  if (const CUresult e = current(&on); e != CUDA_SUCCESS) return e;
  const CUresult done = error_of(on->sim->synchronize());
  if (done == CUDA_SUCCESS) on->pool->synchronised();
  return done;
}

CUresult CUDAAPI cuCtxEnablePeerAccess(CUcontext peer, unsigned int /*flags*/) {
  SIMCUDA_ENTER("cuCtxEnablePeerAccess");
  return peer != nullptr && peer->alive ? CUDA_SUCCESS : CUDA_ERROR_INVALID_CONTEXT;
}

}  // extern "C"
