// The simulated driver: modules and libraries beyond the two loads of driver_programs.cpp, attributes of kernels,
// occupancy, and the newer launches. No kernel runs, and every kernel name is found.
#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "driver_state.hpp"

using namespace gpumem::simcuda;  // NOLINT: the driver's functions are global

namespace {

/// Returns a module's variable: zeros on the device, allocated at the first query.
CUresult global_of(const void* code, const char* name, CUdeviceptr* address, std::size_t* bytes) {
  static auto* const known = new std::map<std::pair<const void*, std::string>, CUdeviceptr>;
  constexpr std::size_t of_each = 4096;
  CUdeviceptr& kept = (*known)[{code, name}];
  if (kept == 0) {
    SIMCUDA_FIND_CURRENT(device);
    SIMCUDA_ASSIGN(got, device->small->alloc(of_each));
    kept = got;
    device->allocations[kept] = of_each;
  }
  if (address != nullptr) *address = kept;
  if (bytes != nullptr) *bytes = of_each;
  return CUDA_SUCCESS;
}

/// The result of every link.
char linked_code[64];

/// Returns the version that kernels claim to be compiled for. Programs choose among their variants by it.
int code_version() {
  static const int named = [] {
    const char* const text = std::getenv("SIMCUDA_CODE_VERSION");
    return text == nullptr ? 0 : std::atoi(text);
  }();
  return named != 0 ? named : the_driver_state().config.profile->code_version();
}

int attribute_of(CUfunction_attribute attrib) {
  switch (attrib) {
    case CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK:
      return 1024;
    case CU_FUNC_ATTRIBUTE_NUM_REGS:
      return 32;
    case CU_FUNC_ATTRIBUTE_PTX_VERSION:
    case CU_FUNC_ATTRIBUTE_BINARY_VERSION:
      return code_version();
    case CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES:
      return 48 << 10;
    default:
      return 0;
  }
}

CUresult blocks_for(int* blocks, int threads) {
  if (blocks == nullptr || threads <= 0) return CUDA_ERROR_INVALID_VALUE;
  *blocks = the_driver_state().config.profile->threads_per_multiprocessor / threads;
  return CUDA_SUCCESS;
}

}  // namespace

extern "C" {

// --- modules and libraries ------------------------------------------------------------------------------------------

CUresult CUDAAPI cuModuleLoad(CUmodule* module, const char* file) { return cuModuleLoadData(module, file); }
CUresult CUDAAPI cuModuleLoadDataEx(CUmodule* module, const void* code, unsigned int, CUjit_option*, void**) {
  return cuModuleLoadData(module, code);
}
CUresult CUDAAPI cuModuleLoadFatBinary(CUmodule* module, const void* code) { return cuModuleLoadData(module, code); }
CUresult CUDAAPI cuModuleUnload(CUmodule module) {
  SIMCUDA_ENTER("cuModuleUnload");
  return module == nullptr ? CUDA_ERROR_INVALID_HANDLE : CUDA_SUCCESS;
}
CUresult CUDAAPI cuModuleGetLoadingMode(CUmoduleLoadingMode* mode) {
  SIMCUDA_ENTER("cuModuleGetLoadingMode");
  *mode = CU_MODULE_LAZY_LOADING;
  return CUDA_SUCCESS;
}
CUresult CUDAAPI cuModuleGetGlobal_v2(CUdeviceptr* dptr, std::size_t* bytes, CUmodule module, const char* name) {
  SIMCUDA_ENTER("cuModuleGetGlobal");
  return global_of(module, name, dptr, bytes);
}
CUresult CUDAAPI cuLibraryLoadFromFile(CUlibrary* library, const char* file, CUjit_option* options, void** values,
                                       unsigned int count, CUlibraryOption* library_options, void** library_values,
                                       unsigned int library_count) {
  return cuLibraryLoadData(library, file, options, values, count, library_options, library_values, library_count);
}
CUresult CUDAAPI cuLibraryUnload(CUlibrary library) {
  SIMCUDA_ENTER("cuLibraryUnload");
  return library == nullptr ? CUDA_ERROR_INVALID_HANDLE : CUDA_SUCCESS;
}
CUresult CUDAAPI cuLibraryGetModule(CUmodule* module, CUlibrary library) {
  SIMCUDA_ENTER("cuLibraryGetModule");
  *module = reinterpret_cast<CUmodule>(library);
  return CUDA_SUCCESS;
}
CUresult CUDAAPI cuLibraryGetGlobal(CUdeviceptr* dptr, std::size_t* bytes, CUlibrary library, const char* name) {
  SIMCUDA_ENTER("cuLibraryGetGlobal");
  return global_of(library, name, dptr, bytes);
}
CUresult CUDAAPI cuLibraryGetManaged(CUdeviceptr* dptr, std::size_t* bytes, CUlibrary library, const char* name) {
  SIMCUDA_ENTER("cuLibraryGetManaged");
  return global_of(library, name, dptr, bytes);
}
CUresult CUDAAPI cuLibraryGetKernelCount(unsigned int* count, CUlibrary library) {
  SIMCUDA_ENTER("cuLibraryGetKernelCount");
  *count = 0;  // the code is never read
  return library == nullptr ? CUDA_ERROR_INVALID_HANDLE : CUDA_SUCCESS;
}
CUresult CUDAAPI cuKernelGetFunction(CUfunction* function, CUkernel kernel) {
  SIMCUDA_ENTER("cuKernelGetFunction");
  if (kernel == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  *function = reinterpret_cast<CUfunction>(kernel);
  return CUDA_SUCCESS;
}
CUresult CUDAAPI cuKernelGetAttribute(int* value, CUfunction_attribute attrib, CUkernel, CUdevice) {
  SIMCUDA_ENTER("cuKernelGetAttribute");
  *value = attribute_of(attrib);
  return CUDA_SUCCESS;
}
SIMCUDA_SUCCEEDS(cuKernelSetAttribute, "cuKernelSetAttribute", (CUfunction_attribute, int, CUkernel, CUdevice))
SIMCUDA_SUCCEEDS(cuKernelSetCacheConfig, "cuKernelSetCacheConfig", (CUkernel, CUfunc_cache, CUdevice))

// --- kernels --------------------------------------------------------------------------------------------------------

CUresult CUDAAPI cuFuncGetAttribute(int* value, CUfunction_attribute attrib, CUfunction) {
  SIMCUDA_ENTER("cuFuncGetAttribute");
  *value = attribute_of(attrib);
  return CUDA_SUCCESS;
}
SIMCUDA_SUCCEEDS(cuFuncSetAttribute, "cuFuncSetAttribute", (CUfunction, CUfunction_attribute, int))
SIMCUDA_SUCCEEDS(cuFuncSetCacheConfig, "cuFuncSetCacheConfig", (CUfunction, CUfunc_cache))
CUresult CUDAAPI cuFuncGetModule(CUmodule* module, CUfunction function) {
  SIMCUDA_ENTER("cuFuncGetModule");
  *module = reinterpret_cast<CUmodule>(function);
  return CUDA_SUCCESS;
}
CUresult CUDAAPI cuOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, CUfunction, int threads, std::size_t) {
  SIMCUDA_ENTER("cuOccupancyMaxActiveBlocksPerMultiprocessor");
  return blocks_for(blocks, threads);
}
CUresult CUDAAPI cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int* blocks, CUfunction, int threads, std::size_t,
                                                                      unsigned int) {
  SIMCUDA_ENTER("cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags");
  return blocks_for(blocks, threads);
}
CUresult CUDAAPI cuOccupancyMaxPotentialBlockSize(int* least_grid, int* block, CUfunction, CUoccupancyB2DSize,
                                                  std::size_t, int limit) {
  SIMCUDA_ENTER("cuOccupancyMaxPotentialBlockSize");
  *block = limit > 0 ? std::min(limit, 1024) : 1024;
  *least_grid = the_driver_state().config.profile->multiprocessors;
  return CUDA_SUCCESS;
}
CUresult CUDAAPI cuOccupancyMaxActiveClusters(int* clusters, CUfunction, const CUlaunchConfig*) {
  SIMCUDA_ENTER("cuOccupancyMaxActiveClusters");
  *clusters = 1;
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuLaunchKernelEx(const CUlaunchConfig* config, CUfunction function, void** arguments, void** extra) {
  if (config == nullptr) return CUDA_ERROR_INVALID_VALUE;
  return cuLaunchKernel(function, config->gridDimX, config->gridDimY, config->gridDimZ, config->blockDimX,
                        config->blockDimY, config->blockDimZ, config->sharedMemBytes, config->hStream, arguments,
                        extra);
}
CUresult CUDAAPI cuLaunchCooperativeKernel(CUfunction function, unsigned int grid_dim_x, unsigned int grid_dim_y,
                                           unsigned int grid_dim_z, unsigned int block_dim_x, unsigned int block_dim_y,
                                           unsigned int block_dim_z, unsigned int shared_bytes, CUstream stream,
                                           void** arguments) {
  return cuLaunchKernel(function, grid_dim_x, grid_dim_y, grid_dim_z, block_dim_x, block_dim_y, block_dim_z,
                        shared_bytes, stream, arguments, nullptr);
}

CUresult CUDAAPI cuTensorMapEncodeTiled(CUtensorMap* map, CUtensorMapDataType, cuuint32_t, void*, const cuuint64_t*,
                                        const cuuint64_t*, const cuuint32_t*, const cuuint32_t*, CUtensorMapInterleave,
                                        CUtensorMapSwizzle, CUtensorMapL2promotion, CUtensorMapFloatOOBfill) {
  SIMCUDA_ENTER("cuTensorMapEncodeTiled");
  std::memset(map, 0, sizeof *map);
  return CUDA_SUCCESS;
}

// Linking accepts anything, because a module's code is never read.
CUresult CUDAAPI cuLinkCreate_v2(unsigned int, CUjit_option*, void**, CUlinkState* state) {
  SIMCUDA_ENTER("cuLinkCreate");
  *state = reinterpret_cast<CUlinkState>(linked_code);
  return CUDA_SUCCESS;
}
SIMCUDA_SUCCEEDS(cuLinkAddData_v2, "cuLinkAddData",
                 (CUlinkState, CUjitInputType, void*, std::size_t, const char*, unsigned int, CUjit_option*, void**))
SIMCUDA_SUCCEEDS(cuLinkAddFile_v2, "cuLinkAddFile",
                 (CUlinkState, CUjitInputType, const char*, unsigned int, CUjit_option*, void**))
CUresult CUDAAPI cuLinkComplete(CUlinkState, void** code, std::size_t* bytes) {
  SIMCUDA_ENTER("cuLinkComplete");
  *code = linked_code;
  *bytes = sizeof linked_code;
  return CUDA_SUCCESS;
}
SIMCUDA_SUCCEEDS(cuLinkDestroy, "cuLinkDestroy", (CUlinkState))

}  // extern "C"
