// The simulated runtime: functions that nvcc's generated code calls to register kernels and to launch them.
//
// The first launch from a fat binary loads it into the driver as a library; no kernel's code ever runs here.
#include <dlfcn.h>

#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "runtime.hpp"

using namespace gpumem::simcudart;  // NOLINT: the runtime's functions are global

namespace {

struct fat_binary {
  const void* image = nullptr;
  CUlibrary library = nullptr;  ///< null: not loaded yet
};

struct host_function {
  fat_binary* binary = nullptr;
  std::string name;
  CUkernel kernel = nullptr;  ///< null: not looked up yet
};

struct registry {
  std::mutex mutex;
  std::map<const void*, host_function> functions;  ///< by the address of the host stub
};

registry& the_registry() {
  static auto* const only = new registry;
  return *only;
}

struct configuration {
  dim3 grid;
  dim3 block;
  std::size_t shared_bytes;
  cudaStream_t stream;
};
thread_local std::vector<configuration> configurations;

cudaError_t kernel_of(const void* function, CUkernel* kernel) {
  registry& r = the_registry();
  const std::lock_guard lock{r.mutex};
  const auto found = r.functions.find(function);
  if (found == r.functions.end()) return cudaErrorInvalidDeviceFunction;
  host_function& f = found->second;
  if (f.kernel == nullptr) {
    if (const cudaError_t e = initialise(); e != cudaSuccess) return e;
    if (f.binary->library == nullptr) {
      const CUresult e =
          driver().cuLibraryLoadData(&f.binary->library, f.binary->image, nullptr, nullptr, 0, nullptr, nullptr, 0);
      if (e != CUDA_SUCCESS) return error_of(e);
    }
    const CUresult e = driver().cuLibraryGetKernel(&f.kernel, f.binary->library, f.name.c_str());
    if (e != CUDA_SUCCESS) return error_of(e);
  }
  *kernel = f.kernel;
  return cudaSuccess;
}

cudaError_t launch(bool per_thread, CUkernel kernel, dim3 grid, dim3 block, void** arguments, std::size_t shared_bytes,
                   cudaStream_t stream) {
  return call([&] {
    return driver(per_thread)
        .cuLaunchKernel(reinterpret_cast<CUfunction>(kernel), grid.x, grid.y, grid.z, block.x, block.y, block.z,
                        static_cast<unsigned int>(shared_bytes), stream, arguments, nullptr);
  });
}

cudaError_t launch_function(bool per_thread, const void* function, dim3 grid, dim3 block, void** arguments,
                            std::size_t shared_bytes, cudaStream_t stream) {
  CUkernel kernel = nullptr;
  if (const cudaError_t e = kernel_of(function, &kernel); e != cudaSuccess) return remember(e);
  return launch(per_thread, kernel, grid, block, arguments, shared_bytes, stream);
}

cudaError_t launch_with(bool per_thread, const cudaLaunchConfig_t& config, const void* function, void** arguments) {
  return launch_function(per_thread, function, config.gridDim, config.blockDim, arguments, config.dynamicSmemBytes,
                         config.stream);
}

/// Reads an attribute of the current device.
int attribute(CUdevice_attribute attrib) {
  CUdevice device = 0;
  int value = 0;
  static_cast<void>(driver().cuCtxGetDevice(&device));
  static_cast<void>(driver().cuDeviceGetAttribute(&value, attrib, device));
  return value;
}

}  // namespace

extern "C" {

// --- registration: static initialisers of what nvcc compiled --------------------------------------------------------

void** CUDARTAPI __cudaRegisterFatBinary(void* image) {
  return reinterpret_cast<void**>(new fat_binary{image, nullptr});
}
void CUDARTAPI __cudaRegisterFatBinaryEnd(void** /*handle*/) {}

void CUDARTAPI __cudaUnregisterFatBinary(void** handle) {
  auto* const gone = reinterpret_cast<fat_binary*>(handle);
  registry& r = the_registry();
  {
    const std::lock_guard lock{r.mutex};
    for (auto entry = r.functions.begin(); entry != r.functions.end();) {
      entry = entry->second.binary == gone ? r.functions.erase(entry) : std::next(entry);
    }
  }
  delete gone;
}

void CUDARTAPI __cudaRegisterFunction(void** handle, const char* on_host, char* /*on_device*/, const char* name,
                                      int /*threads*/, uint3*, uint3*, dim3*, dim3*, int*) {
  registry& r = the_registry();
  const std::lock_guard lock{r.mutex};
  r.functions[on_host] = {reinterpret_cast<fat_binary*>(handle), name, nullptr};
}

void CUDARTAPI __cudaRegisterVar(void**, char*, char*, const char*, int, std::size_t, int, int) {}
void CUDARTAPI __cudaRegisterHostVar(void**, const char*, char*, std::size_t) {}
void CUDARTAPI __cudaRegisterManagedVar(void**, void**, char*, const char*, int, std::size_t, int, int) {}
char CUDARTAPI __cudaInitModule(void** /*handle*/) { return 1; }

// --- launches -------------------------------------------------------------------------------------------------------

unsigned CUDARTAPI __cudaPushCallConfiguration(dim3 grid, dim3 block, std::size_t shared_bytes,
                                               struct CUstream_st* stream) {
  configurations.push_back({grid, block, shared_bytes, stream});
  return 0;
}

cudaError_t CUDARTAPI __cudaPopCallConfiguration(dim3* grid, dim3* block, std::size_t* shared_bytes, void* stream) {
  if (configurations.empty()) return remember(cudaErrorMissingConfiguration);
  const configuration c = configurations.back();
  configurations.pop_back();
  *grid = c.grid;
  *block = c.block;
  *shared_bytes = c.shared_bytes;
  *static_cast<cudaStream_t*>(stream) = c.stream;
  return cudaSuccess;
}

cudaError_t CUDARTAPI __cudaGetKernel(cudaKernel_t* kernel, const void* function) {
  return remember(kernel_of(function, reinterpret_cast<CUkernel*>(kernel)));
}
cudaError_t CUDARTAPI cudaGetKernel(cudaKernel_t* kernel, const void* function) {
  return __cudaGetKernel(kernel, function);
}

cudaError_t CUDARTAPI __cudaLaunchKernel(cudaKernel_t kernel, dim3 grid, dim3 block, void** arguments,
                                         std::size_t shared_bytes, cudaStream_t stream) {
  return launch(false, reinterpret_cast<CUkernel>(kernel), grid, block, arguments, shared_bytes, stream);
}
cudaError_t CUDARTAPI __cudaLaunchKernel_ptsz(cudaKernel_t kernel, dim3 grid, dim3 block, void** arguments,
                                              std::size_t shared_bytes, cudaStream_t stream) {
  return launch(true, reinterpret_cast<CUkernel>(kernel), grid, block, arguments, shared_bytes, stream);
}
cudaError_t CUDARTAPI cudaLaunchKernel(const void* function, dim3 grid, dim3 block, void** arguments,
                                       std::size_t shared_bytes, cudaStream_t stream) {
  return launch_function(false, function, grid, block, arguments, shared_bytes, stream);
}
cudaError_t CUDARTAPI cudaLaunchKernel_ptsz(const void* function, dim3 grid, dim3 block, void** arguments,
                                            std::size_t shared_bytes, cudaStream_t stream) {
  return launch_function(true, function, grid, block, arguments, shared_bytes, stream);
}
cudaError_t CUDARTAPI cudaLaunchKernelExC(const cudaLaunchConfig_t* config, const void* function, void** arguments) {
  return launch_with(false, *config, function, arguments);
}
cudaError_t CUDARTAPI cudaLaunchKernelExC_ptsz(const cudaLaunchConfig_t* config, const void* function,
                                               void** arguments) {
  return launch_with(true, *config, function, arguments);
}

// --- attributes of kernels: plausible figures, since the code is never read -----------------------------------------

cudaError_t CUDARTAPI cudaFuncGetAttributes(cudaFuncAttributes* attr, const void* function) {
  CUkernel kernel = nullptr;
  if (const cudaError_t e = kernel_of(function, &kernel); e != cudaSuccess) return remember(e);
  *attr = {};
  attr->maxThreadsPerBlock = 1024;
  attr->numRegs = 32;
  attr->maxDynamicSharedSizeBytes = 48 << 10;
  return call([&] {
    CUdevice device = 0;
    static_cast<void>(driver().cuCtxGetDevice(&device));
    const CUresult e =
        driver().cuKernelGetAttribute(&attr->binaryVersion, CU_FUNC_ATTRIBUTE_BINARY_VERSION, kernel, device);
    attr->ptxVersion = attr->binaryVersion;
    return e;
  });
}

cudaError_t CUDARTAPI cudaFuncSetAttribute(const void*, cudaFuncAttribute, int) { return cudaSuccess; }
cudaError_t CUDARTAPI cudaFuncSetCacheConfig(const void*, cudaFuncCache) { return cudaSuccess; }

cudaError_t CUDARTAPI cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int* blocks, const void*, int threads,
                                                                             std::size_t, unsigned int) {
  if (threads <= 0) return remember(cudaErrorInvalidValue);
  return call([&] {
    *blocks = attribute(CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR) / threads;
    return CUDA_SUCCESS;
  });
}
cudaError_t CUDARTAPI cudaOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, const void* function, int threads,
                                                                    std::size_t shared_bytes) {
  return cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(blocks, function, threads, shared_bytes, 0);
}

/// Result of every function of the real runtime that is missing here; the build generates these functions.
int simcudart_not_supported() { return remember(cudaErrorNotSupported); }

/// As above, for a function that allocates or maps memory: also adds it to the run's report.
int simcudart_memory_not_supported(const char* name) {
  if (const cudaError_t e = enter(); e != cudaSuccess) return remember(e);
  using note_function = void (*)(const char*);
  static const auto note = reinterpret_cast<note_function>(::dlsym(RTLD_DEFAULT, "simcuda_note_unsupported"));
  if (note != nullptr) note(name);
  return remember(cudaErrorNotSupported);
}

}  // extern "C"
