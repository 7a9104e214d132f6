// The simulated driver: attributes of a card, its bus address, limits of a context.
#include <algorithm>
#include <cstdio>
#include <cstring>
#include <limits>

#include "driver_state.hpp"

using namespace gpumem::simcuda;  // NOLINT: the driver's functions are global

namespace {

constexpr int most = std::numeric_limits<int>::max();

/// Returns an attribute that programs are known to read; 0 for others, as on a card without the feature.
int attribute_of(const card_profile& card, int bus, CUdevice_attribute attrib) {
  const std::pair<CUdevice_attribute, int> values[] = {
    {CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, card.compute_major},
    {CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, card.compute_minor},
    {CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, card.multiprocessors},
    {CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR, card.threads_per_multiprocessor},
    {CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR, card.shared_kib_per_multiprocessor << 10},
    {CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN, card.shared_bytes_opt_in()},
    {CU_DEVICE_ATTRIBUTE_RESERVED_SHARED_MEMORY_PER_BLOCK, card.compute_major >= 8 ? 1024 : 0},
    {CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE, card.l2_kib << 10},
    {CU_DEVICE_ATTRIBUTE_MAX_BLOCKS_PER_MULTIPROCESSOR, card.threads_per_multiprocessor / 64},
    {CU_DEVICE_ATTRIBUTE_PCI_BUS_ID, bus},
    {CU_DEVICE_ATTRIBUTE_WARP_SIZE, 32},
    {CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK, 1024},
    {CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_X, 1024},
    {CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Y, 1024},
    {CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Z, 64},
    {CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_X, most},
    {CU_DEVICE_ATTRIBUTE_MAX_PITCH, most},
    {CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Y, 65'535},
    {CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Z, 65'535},
    {CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK, 48 << 10},
    {CU_DEVICE_ATTRIBUTE_TOTAL_CONSTANT_MEMORY, 64 << 10},
    {CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_BLOCK, 64 << 10},
    {CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_MULTIPROCESSOR, 64 << 10},
    {CU_DEVICE_ATTRIBUTE_TEXTURE_ALIGNMENT, 512},
    {CU_DEVICE_ATTRIBUTE_TEXTURE_PITCH_ALIGNMENT, 32},
    {CU_DEVICE_ATTRIBUTE_CLOCK_RATE, 1'500'000},  // kHz; clocks do not affect simulated time
    {CU_DEVICE_ATTRIBUTE_MEMORY_CLOCK_RATE, 1'500'000},
    {CU_DEVICE_ATTRIBUTE_GLOBAL_MEMORY_BUS_WIDTH, card.memory_mib > (32U << 10) ? 5120 : 384},
    {CU_DEVICE_ATTRIBUTE_ASYNC_ENGINE_COUNT, 1},
    {CU_DEVICE_ATTRIBUTE_CAN_MAP_HOST_MEMORY, 1},
    {CU_DEVICE_ATTRIBUTE_CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM, 1},
    {CU_DEVICE_ATTRIBUTE_COMPUTE_PREEMPTION_SUPPORTED, 1},
    {CU_DEVICE_ATTRIBUTE_CONCURRENT_KERNELS, 1},
    {CU_DEVICE_ATTRIBUTE_CONCURRENT_MANAGED_ACCESS, 1},
    {CU_DEVICE_ATTRIBUTE_COOPERATIVE_LAUNCH, 1},
    {CU_DEVICE_ATTRIBUTE_GLOBAL_L1_CACHE_SUPPORTED, 1},
    {CU_DEVICE_ATTRIBUTE_GPU_OVERLAP, 1},
    {CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED, 1},
    {CU_DEVICE_ATTRIBUTE_LOCAL_L1_CACHE_SUPPORTED, 1},
    {CU_DEVICE_ATTRIBUTE_MANAGED_MEMORY, 1},
    {CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED, 1},
    {CU_DEVICE_ATTRIBUTE_STREAM_PRIORITIES_SUPPORTED, 1},
    {CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING, 1},
    {CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED, 1},
#if CUDA_VERSION >= 13000
    {CU_DEVICE_ATTRIBUTE_HOST_NUMA_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED, 1},
    {CU_DEVICE_ATTRIBUTE_HOST_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED, 1},
#endif
  };
  const auto* const found = std::ranges::find(values, attrib, &std::pair<CUdevice_attribute, int>::first);
  return found != std::end(values) ? found->second : 0;
}

CUresult write_bus_id(char* text, int bytes, int card) {
  if (text == nullptr || bytes < 1) return CUDA_ERROR_INVALID_VALUE;
  std::snprintf(text, static_cast<std::size_t>(bytes), "0000:%02X:00.0", static_cast<unsigned>(card + 1) & 0xffU);
  return CUDA_SUCCESS;
}

}  // namespace

extern "C" {

CUresult CUDAAPI cuDeviceGetAttribute(int* value, CUdevice_attribute attrib, CUdevice device) {
  SIMCUDA_ENTER("cuDeviceGetAttribute");
  SIMCUDA_FIND_DEVICE(g, device);
  if (attrib == CU_DEVICE_ATTRIBUTE_INTEGRATED) {
    *value = the_driver_state().config.integrated ? 1 : 0;
  } else if (attrib == CU_DEVICE_ATTRIBUTE_COMPUTE_MODE) {
    *value = the_driver_state().config.compute_mode;
  } else {
    *value = attribute_of(*the_driver_state().config.profile, g->card + 1, attrib);
  }
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuDeviceComputeCapability(int* major, int* minor, CUdevice device) {
  SIMCUDA_ENTER("cuDeviceComputeCapability");
  if (device_of(device) == nullptr) return CUDA_ERROR_INVALID_DEVICE;
  *major = the_driver_state().config.profile->compute_major;
  *minor = the_driver_state().config.profile->compute_minor;
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuDeviceGetPCIBusId(char* text, int bytes, CUdevice device) {
  SIMCUDA_ENTER("cuDeviceGetPCIBusId");
  SIMCUDA_FIND_DEVICE(g, device);
  return write_bus_id(text, bytes, g->card);
}

CUresult CUDAAPI cuDeviceGetByPCIBusId(CUdevice* device, const char* text) {
  SIMCUDA_ENTER("cuDeviceGetByPCIBusId");
  for (const auto& g : the_driver_state().gpus) {
    char own[16];
    static_cast<void>(write_bus_id(own, sizeof own, g->card));
    if (text != nullptr && std::strcmp(own, text) == 0) return *device = g->ordinal, CUDA_SUCCESS;
  }
  return CUDA_ERROR_INVALID_DEVICE;
}

CUresult CUDAAPI cuDeviceGetP2PAttribute(int* value, CUdevice_P2PAttribute attrib, CUdevice src_device,
                                         CUdevice dst_device) {
  SIMCUDA_ENTER("cuDeviceGetP2PAttribute");
  if (device_of(src_device) == nullptr || device_of(dst_device) == nullptr || src_device == dst_device)
    return CUDA_ERROR_INVALID_DEVICE;
  *value = attrib == CU_DEVICE_P2P_ATTRIBUTE_ACCESS_SUPPORTED ? 1 : 0;
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuDeviceGetTexture1DLinearMaxWidth(std::size_t* width, CUarray_format, unsigned, CUdevice) {
  SIMCUDA_ENTER("cuDeviceGetTexture1DLinearMaxWidth");
  *width = std::size_t{1} << 28;
  return CUDA_SUCCESS;
}

// --- contexts -------------------------------------------------------------------------------------------------------

/// Limits have no effect; queries return the values that were set.
static std::size_t limits[CU_LIMIT_MAX] = {1024, 1 << 20, 8 << 20, 2, 2048, 128, 0};

CUresult CUDAAPI cuCtxGetLimit(std::size_t* value, CUlimit limit) {
  SIMCUDA_ENTER("cuCtxGetLimit");
  if (limit < 0 || limit >= CU_LIMIT_MAX) return CUDA_ERROR_UNSUPPORTED_LIMIT;
  *value = limits[limit];
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuCtxSetLimit(CUlimit limit, std::size_t value) {
  SIMCUDA_ENTER("cuCtxSetLimit");
  if (limit < 0 || limit >= CU_LIMIT_MAX) return CUDA_ERROR_UNSUPPORTED_LIMIT;
  limits[limit] = value;
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuCtxGetStreamPriorityRange(int* least, int* greatest) {
  SIMCUDA_ENTER("cuCtxGetStreamPriorityRange");
  if (least != nullptr) *least = 0;
  if (greatest != nullptr) *greatest = -5;
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuCtxGetApiVersion(CUcontext, unsigned int* version) {
  SIMCUDA_ENTER("cuCtxGetApiVersion");
  *version = 3020;
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuCtxGetFlags(unsigned int* flags) {
  SIMCUDA_ENTER("cuCtxGetFlags");
  *flags = 0;
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuDevicePrimaryCtxSetFlags_v2(CUdevice device, unsigned int) {
  SIMCUDA_ENTER("cuDevicePrimaryCtxSetFlags");
  return device_of(device) == nullptr ? CUDA_ERROR_INVALID_DEVICE : CUDA_SUCCESS;
}

}  // extern "C"
