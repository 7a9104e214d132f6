// The simulated runtime: versions, errors, devices, and lookups of driver functions.

#include "runtime.hpp"

using namespace gpumem::simcudart;  // NOLINT: the runtime's functions are global

namespace {

struct named_error {
  cudaError_t code;
  const char* name;
  const char* text;
};
constexpr named_error errors[] = {
#define ERROR(driver_code, code, text) {code, #code, text},
#define RUNTIME_ERROR(code, text) {code, #code, text},
#include "../errors.def"
};

int attribute(CUdevice_attribute attrib, CUdevice device) {
  int value = 0;
  static_cast<void>(driver().cuDeviceGetAttribute(&value, attrib, device));
  return value;
}

CUresult describe(cudaDeviceProp& prop, int ordinal) {
  prop = {};
  CUdevice d = 0;
  if (const CUresult e = driver().cuDeviceGet(&d, ordinal); e != CUDA_SUCCESS) return e;
  if (const CUresult e = driver().cuDeviceGetName(prop.name, sizeof prop.name, d); e != CUDA_SUCCESS) return e;
  if (const CUresult e = driver().cuDeviceGetUuid(&prop.uuid, d); e != CUDA_SUCCESS) return e;
  if (const CUresult e = driver().cuDeviceTotalMem(&prop.totalGlobalMem, d); e != CUDA_SUCCESS) return e;
  prop.major = attribute(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, d);
  prop.minor = attribute(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, d);
  prop.multiProcessorCount = attribute(CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, d);
  prop.warpSize = attribute(CU_DEVICE_ATTRIBUTE_WARP_SIZE, d);
  prop.maxThreadsPerBlock = attribute(CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK, d);
  prop.maxThreadsPerMultiProcessor = attribute(CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR, d);
  prop.maxThreadsDim[0] = attribute(CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_X, d);
  prop.maxThreadsDim[1] = attribute(CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Y, d);
  prop.maxThreadsDim[2] = attribute(CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Z, d);
  prop.maxGridSize[0] = attribute(CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_X, d);
  prop.maxGridSize[1] = attribute(CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Y, d);
  prop.maxGridSize[2] = attribute(CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Z, d);
  prop.sharedMemPerBlock = static_cast<std::size_t>(attribute(CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK, d));
  prop.unifiedAddressing = attribute(CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING, d);
  prop.memoryPoolsSupported = attribute(CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED, d);
  prop.managedMemory = attribute(CU_DEVICE_ATTRIBUTE_MANAGED_MEMORY, d);
  prop.concurrentKernels = attribute(CU_DEVICE_ATTRIBUTE_CONCURRENT_KERNELS, d);
  prop.asyncEngineCount = attribute(CU_DEVICE_ATTRIBUTE_ASYNC_ENGINE_COUNT, d);
  prop.l2CacheSize = attribute(CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE, d);
  prop.sharedMemPerBlockOptin =
      static_cast<std::size_t>(attribute(CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN, d));
  prop.sharedMemPerMultiprocessor =
      static_cast<std::size_t>(attribute(CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR, d));
  prop.reservedSharedMemPerBlock =
      static_cast<std::size_t>(attribute(CU_DEVICE_ATTRIBUTE_RESERVED_SHARED_MEMORY_PER_BLOCK, d));
  prop.regsPerBlock = attribute(CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_BLOCK, d);
  prop.regsPerMultiprocessor = attribute(CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_MULTIPROCESSOR, d);
  prop.maxBlocksPerMultiProcessor = attribute(CU_DEVICE_ATTRIBUTE_MAX_BLOCKS_PER_MULTIPROCESSOR, d);
  prop.memoryBusWidth = attribute(CU_DEVICE_ATTRIBUTE_GLOBAL_MEMORY_BUS_WIDTH, d);
  prop.totalConstMem = static_cast<std::size_t>(attribute(CU_DEVICE_ATTRIBUTE_TOTAL_CONSTANT_MEMORY, d));
  prop.memPitch = static_cast<std::size_t>(attribute(CU_DEVICE_ATTRIBUTE_MAX_PITCH, d));
  prop.textureAlignment = static_cast<std::size_t>(attribute(CU_DEVICE_ATTRIBUTE_TEXTURE_ALIGNMENT, d));
  prop.texturePitchAlignment = static_cast<std::size_t>(attribute(CU_DEVICE_ATTRIBUTE_TEXTURE_PITCH_ALIGNMENT, d));
  prop.canMapHostMemory = attribute(CU_DEVICE_ATTRIBUTE_CAN_MAP_HOST_MEMORY, d);
  prop.concurrentManagedAccess = attribute(CU_DEVICE_ATTRIBUTE_CONCURRENT_MANAGED_ACCESS, d);
  prop.computePreemptionSupported = attribute(CU_DEVICE_ATTRIBUTE_COMPUTE_PREEMPTION_SUPPORTED, d);
  prop.cooperativeLaunch = attribute(CU_DEVICE_ATTRIBUTE_COOPERATIVE_LAUNCH, d);
  prop.streamPrioritiesSupported = attribute(CU_DEVICE_ATTRIBUTE_STREAM_PRIORITIES_SUPPORTED, d);
  prop.globalL1CacheSupported = attribute(CU_DEVICE_ATTRIBUTE_GLOBAL_L1_CACHE_SUPPORTED, d);
  prop.localL1CacheSupported = attribute(CU_DEVICE_ATTRIBUTE_LOCAL_L1_CACHE_SUPPORTED, d);
  prop.canUseHostPointerForRegisteredMem = attribute(CU_DEVICE_ATTRIBUTE_CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM, d);
  prop.pciBusID = attribute(CU_DEVICE_ATTRIBUTE_PCI_BUS_ID, d);
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
  *version = 0;  // no error: without a driver the version is 0
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
  static_cast<void>(driver().cuCtxGetDevice(&d));  // leaves `d` unchanged without a current context
  *device = d;
  return cudaSuccess;
}

cudaError_t CUDARTAPI cudaSetDevice(int device) {
  if (const cudaError_t e = initialise(); e != cudaSuccess) return remember(e);
  CUcontext context = nullptr;
  CUdevice current = -1;
  const bool is_current = driver().cuCtxGetDevice(&current) == CUDA_SUCCESS && current == device;
  if (is_current && chosen_device() == device) return cudaSuccess;
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

FORWARD(cudaDeviceSynchronize, (), cuCtxSynchronize())

cudaError_t CUDARTAPI cudaDeviceReset() {
  int device = 0;
  if (const cudaError_t e = cudaGetDevice(&device); e != cudaSuccess) return e;
  forget_contexts(device);
  return call_without_context([&] {
    static_cast<void>(driver().cuCtxSetCurrent(nullptr));
    return driver().cuDevicePrimaryCtxReset(device);
  });
}

cudaError_t CUDARTAPI cudaGetDeviceProperties(cudaDeviceProp* prop, int device) {
  return call_without_context([&] { return describe(*prop, device); });
}

FORWARD_WITHOUT_CONTEXT(cudaDeviceGetAttribute, (int* value, cudaDeviceAttr attr, int device),
                        cuDeviceGetAttribute(value, static_cast<CUdevice_attribute>(attr), device))

cudaError_t CUDARTAPI cudaDeviceGetStreamPriorityRange(int* least, int* greatest) {
  if (least != nullptr) *least = 0;
  if (greatest != nullptr) *greatest = -5;
  return cudaSuccess;
}

FORWARD_WITHOUT_CONTEXT(cudaDeviceCanAccessPeer, (int* can, int device, int peer),
                        cuDeviceCanAccessPeer(can, device, peer))

cudaError_t CUDARTAPI cudaDeviceEnablePeerAccess(int peer, unsigned int flags) {
  if (const cudaError_t e = initialise(); e != cudaSuccess) return remember(e);
  CUcontext context = nullptr;
  if (const cudaError_t e = context_of(peer, &context); e != cudaSuccess) return remember(e);
  return call([&] { return driver().cuCtxEnablePeerAccess(context, flags); });
}

cudaChannelFormatDesc CUDARTAPI cudaCreateChannelDesc(int x_bits, int y_bits, int z_bits, int w_bits,
                                                      cudaChannelFormatKind kind) {
  return {x_bits, y_bits, z_bits, w_bits, kind};
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
