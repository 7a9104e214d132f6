// The runtime double: versions, errors, devices, and the driver's own functions for those who ask.
#include <cstring>

#include "runtime.hpp"

using namespace gpumem::simcudart;  // NOLINT: the runtime's functions are global

namespace {

struct named_error {
  cudaError_t code;
  const char* name;
  const char* text;
};
constexpr named_error errors[] = {
#define ERROR(code, text) {code, #code, text},
#include "errors.def"
#undef ERROR
};

int attribute(CUdevice_attribute which, CUdevice device) {
  int value = 0;
  static_cast<void>(driver().cuDeviceGetAttribute(&value, which, device));
  return value;
}

CUresult describe(cudaDeviceProp& p, int ordinal) {
  p = {};
  CUdevice d = 0;
  if (const CUresult e = driver().cuDeviceGet(&d, ordinal); e != CUDA_SUCCESS) return e;
  if (const CUresult e = driver().cuDeviceGetName(p.name, sizeof p.name, d); e != CUDA_SUCCESS) return e;
  if (const CUresult e = driver().cuDeviceGetUuid(&p.uuid, d); e != CUDA_SUCCESS) return e;
  if (const CUresult e = driver().cuDeviceTotalMem(&p.totalGlobalMem, d); e != CUDA_SUCCESS) return e;
  p.major = attribute(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, d);
  p.minor = attribute(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, d);
  p.multiProcessorCount = attribute(CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, d);
  p.warpSize = attribute(CU_DEVICE_ATTRIBUTE_WARP_SIZE, d);
  p.maxThreadsPerBlock = attribute(CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK, d);
  p.maxThreadsPerMultiProcessor = attribute(CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR, d);
  p.maxThreadsDim[0] = attribute(CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_X, d);
  p.maxThreadsDim[1] = attribute(CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Y, d);
  p.maxThreadsDim[2] = attribute(CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Z, d);
  p.maxGridSize[0] = attribute(CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_X, d);
  p.maxGridSize[1] = attribute(CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Y, d);
  p.maxGridSize[2] = attribute(CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Z, d);
  p.sharedMemPerBlock = static_cast<std::size_t>(attribute(CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK, d));
  p.unifiedAddressing = attribute(CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING, d);
  p.memoryPoolsSupported = attribute(CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED, d);
  p.managedMemory = attribute(CU_DEVICE_ATTRIBUTE_MANAGED_MEMORY, d);
  p.concurrentKernels = attribute(CU_DEVICE_ATTRIBUTE_CONCURRENT_KERNELS, d);
  p.asyncEngineCount = attribute(CU_DEVICE_ATTRIBUTE_ASYNC_ENGINE_COUNT, d);
  p.l2CacheSize = attribute(CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE, d);
  p.sharedMemPerBlockOptin =
      static_cast<std::size_t>(attribute(CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN, d));
  p.sharedMemPerMultiprocessor =
      static_cast<std::size_t>(attribute(CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR, d));
  p.reservedSharedMemPerBlock =
      static_cast<std::size_t>(attribute(CU_DEVICE_ATTRIBUTE_RESERVED_SHARED_MEMORY_PER_BLOCK, d));
  p.regsPerBlock = attribute(CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_BLOCK, d);
  p.regsPerMultiprocessor = attribute(CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_MULTIPROCESSOR, d);
  p.maxBlocksPerMultiProcessor = attribute(CU_DEVICE_ATTRIBUTE_MAX_BLOCKS_PER_MULTIPROCESSOR, d);
  p.memoryBusWidth = attribute(CU_DEVICE_ATTRIBUTE_GLOBAL_MEMORY_BUS_WIDTH, d);
  p.totalConstMem = static_cast<std::size_t>(attribute(CU_DEVICE_ATTRIBUTE_TOTAL_CONSTANT_MEMORY, d));
  p.memPitch = static_cast<std::size_t>(attribute(CU_DEVICE_ATTRIBUTE_MAX_PITCH, d));
  p.textureAlignment = static_cast<std::size_t>(attribute(CU_DEVICE_ATTRIBUTE_TEXTURE_ALIGNMENT, d));
  p.texturePitchAlignment = static_cast<std::size_t>(attribute(CU_DEVICE_ATTRIBUTE_TEXTURE_PITCH_ALIGNMENT, d));
  p.canMapHostMemory = attribute(CU_DEVICE_ATTRIBUTE_CAN_MAP_HOST_MEMORY, d);
  p.concurrentManagedAccess = attribute(CU_DEVICE_ATTRIBUTE_CONCURRENT_MANAGED_ACCESS, d);
  p.computePreemptionSupported = attribute(CU_DEVICE_ATTRIBUTE_COMPUTE_PREEMPTION_SUPPORTED, d);
  p.cooperativeLaunch = attribute(CU_DEVICE_ATTRIBUTE_COOPERATIVE_LAUNCH, d);
  p.streamPrioritiesSupported = attribute(CU_DEVICE_ATTRIBUTE_STREAM_PRIORITIES_SUPPORTED, d);
  p.globalL1CacheSupported = attribute(CU_DEVICE_ATTRIBUTE_GLOBAL_L1_CACHE_SUPPORTED, d);
  p.localL1CacheSupported = attribute(CU_DEVICE_ATTRIBUTE_LOCAL_L1_CACHE_SUPPORTED, d);
  p.canUseHostPointerForRegisteredMem = attribute(CU_DEVICE_ATTRIBUTE_CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM, d);
  p.pciBusID = attribute(CU_DEVICE_ATTRIBUTE_PCI_BUS_ID, d);
  return CUDA_SUCCESS;
}

cudaError_t entry_point(const char* symbol, void** function, int version, unsigned long long flags, bool per_thread,
                        cudaDriverEntryPointQueryResult* how) {
  return call_without_context([&] {
    cuuint64_t wanted = per_thread ? CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM : CU_GET_PROC_ADDRESS_LEGACY_STREAM;
    if (flags == cudaEnablePerThreadDefaultStream) wanted = CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM;
    if (flags == cudaEnableLegacyStream) wanted = CU_GET_PROC_ADDRESS_LEGACY_STREAM;
    CUdriverProcAddressQueryResult found = CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
    const CUresult e = driver().cuGetProcAddress(symbol, function, version, wanted, &found);
    if (how != nullptr) *how = static_cast<cudaDriverEntryPointQueryResult>(found);
    return e;
  });
}

int driver_version() {
  int version = 0;
  static_cast<void>(driver().cuDriverGetVersion(&version));
  return version;
}

}  // namespace

extern "C" {

// --- versions and errors --------------------------------------------------------------------------------------------

cudaError_t CUDARTAPI cudaRuntimeGetVersion(int* version) {
  *version = CUDART_VERSION;
  return cudaSuccess;
}

cudaError_t CUDARTAPI cudaDriverGetVersion(int* version) {
  *version = 0;  // and no error: a machine without a driver has version 0
  if (initialise() == cudaSuccess) *version = driver_version();
  return cudaSuccess;
}

cudaError_t CUDARTAPI cudaGetLastError() { return last_error(true); }
cudaError_t CUDARTAPI cudaPeekAtLastError() { return last_error(false); }

const char* CUDARTAPI cudaGetErrorName(cudaError_t code) {
  for (const named_error& e : errors) {
    if (e.code == code) return e.name;
  }
  return "unrecognized error code";
}

const char* CUDARTAPI cudaGetErrorString(cudaError_t code) {
  for (const named_error& e : errors) {
    if (e.code == code) return e.text;
  }
  return "unrecognized error code";
}

// --- devices --------------------------------------------------------------------------------------------------------

cudaError_t CUDARTAPI cudaGetDeviceCount(int* count) {
  *count = 0;
  return call_without_context([&] { return driver().cuDeviceGetCount(count); });
}

cudaError_t CUDARTAPI cudaGetDevice(int* device) {
  if (const cudaError_t e = initialise(); e != cudaSuccess) return remember(e);
  CUdevice d = chosen_device();
  static_cast<void>(driver().cuCtxGetDevice(&d));  // which leaves it where no context is current
  *device = d;
  return cudaSuccess;
}

cudaError_t CUDARTAPI cudaSetDevice(int device) {
  if (const cudaError_t e = initialise(); e != cudaSuccess) return remember(e);
  CUcontext context = nullptr;
  CUdevice now = -1;
  const bool there = driver().cuCtxGetDevice(&now) == CUDA_SUCCESS && now == device;
  if (there && chosen_device() == device) return cudaSuccess;
  if (const cudaError_t e = context_of(device, &context); e != cudaSuccess) return remember(e);
  chosen_device() = device;
  return remember(error_of(driver().cuCtxSetCurrent(context)));
}

cudaError_t CUDARTAPI cudaInitDevice(int device, unsigned int /*device_flags*/, unsigned int /*flags*/) {
  if (const cudaError_t e = initialise(); e != cudaSuccess) return remember(e);
  CUcontext context = nullptr;
  return remember(context_of(device, &context));
}

cudaError_t CUDARTAPI cudaSetDeviceFlags(unsigned int /*flags*/) { return cudaSuccess; }
cudaError_t CUDARTAPI cudaGetDeviceFlags(unsigned int* flags) {
  *flags = cudaDeviceScheduleAuto;
  return cudaSuccess;
}

cudaError_t CUDARTAPI cudaDeviceSynchronize() {
  return call([] { return driver().cuCtxSynchronize(); });
}

cudaError_t CUDARTAPI cudaDeviceReset() {
  int device = 0;
  if (const cudaError_t e = cudaGetDevice(&device); e != cudaSuccess) return e;
  forget_contexts(device);
  return call_without_context([&] {
    static_cast<void>(driver().cuCtxSetCurrent(nullptr));
    return driver().cuDevicePrimaryCtxReset(device);
  });
}

cudaError_t CUDARTAPI cudaGetDeviceProperties(cudaDeviceProp* p, int device) {
  return call_without_context([&] { return describe(*p, device); });
}

cudaError_t CUDARTAPI cudaDeviceGetAttribute(int* value, cudaDeviceAttr which, int device) {
  return call_without_context(
      [&] { return driver().cuDeviceGetAttribute(value, static_cast<CUdevice_attribute>(which), device); });
}

cudaError_t CUDARTAPI cudaDeviceGetStreamPriorityRange(int* least, int* greatest) {
  if (least != nullptr) *least = 0;
  if (greatest != nullptr) *greatest = -5;
  return cudaSuccess;
}

cudaError_t CUDARTAPI cudaDeviceCanAccessPeer(int* can, int device, int peer) {
  return call_without_context([&] { return driver().cuDeviceCanAccessPeer(can, device, peer); });
}

cudaError_t CUDARTAPI cudaDeviceEnablePeerAccess(int peer, unsigned int flags) {
  if (const cudaError_t e = initialise(); e != cudaSuccess) return remember(e);
  CUcontext context = nullptr;
  if (const cudaError_t e = context_of(peer, &context); e != cudaSuccess) return remember(e);
  return call([&] { return driver().cuCtxEnablePeerAccess(context, flags); });
}

cudaChannelFormatDesc CUDARTAPI cudaCreateChannelDesc(int x, int y, int z, int w, cudaChannelFormatKind kind) {
  return {x, y, z, w, kind};
}

cudaError_t CUDARTAPI cudaProfilerStart() { return cudaSuccess; }
cudaError_t CUDARTAPI cudaProfilerStop() { return cudaSuccess; }

// --- the driver's functions -----------------------------------------------------------------------------------------

cudaError_t CUDARTAPI cudaGetDriverEntryPointByVersion(const char* symbol, void** function, unsigned int version,
                                                       unsigned long long flags, cudaDriverEntryPointQueryResult* how) {
  return entry_point(symbol, function, static_cast<int>(version), flags, false, how);
}
cudaError_t CUDARTAPI cudaGetDriverEntryPointByVersion_ptsz(const char* symbol, void** function, unsigned int version,
                                                            unsigned long long flags,
                                                            cudaDriverEntryPointQueryResult* how) {
  return entry_point(symbol, function, static_cast<int>(version), flags, true, how);
}
cudaError_t CUDARTAPI cudaGetDriverEntryPoint(const char* symbol, void** function, unsigned long long flags,
                                              cudaDriverEntryPointQueryResult* how) {
  return entry_point(symbol, function, CUDART_VERSION, flags, false, how);
}
cudaError_t CUDARTAPI cudaGetDriverEntryPoint_ptsz(const char* symbol, void** function, unsigned long long flags,
                                                   cudaDriverEntryPointQueryResult* how) {
  return entry_point(symbol, function, CUDART_VERSION, flags, true, how);
}

}  // extern "C"
