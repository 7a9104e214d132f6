#include "runtime.hpp"

#include <dlfcn.h>

#include <atomic>
#include <mutex>
#include <vector>

namespace gpumem::simcudart {
namespace {

struct ground {
  found_driver driver;
  std::mutex mutex;                 ///< guards the contexts
  std::vector<CUcontext> contexts;  ///< by device; null: not retained yet, or reset
  std::vector<CUcontext> gone;
};
std::atomic<bool> any_gone = false;  ///< some `ground::gone` is set

// No two driver functions share a name and a signature. A missing entry belongs to a newer driver, so only calls of
// that function fail.
template <typename Pointer>
void find(PFN_cuGetProcAddress_v12000 get, const char* name, int version, cuuint64_t flags, Pointer& pointer) {
  void* found = nullptr;
  CUdriverProcAddressQueryResult how = CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
  if (get(name, &found, version, flags, &how) != CUDA_SUCCESS || how != CU_GET_PROC_ADDRESS_SUCCESS) found = nullptr;
  pointer = reinterpret_cast<Pointer>(found);
}

template <typename... Arguments>
void fill_missing(CUresult(CUDAAPI*& pointer)(Arguments...)) {
  if (pointer == nullptr) pointer = [](Arguments...) -> CUresult { return CUDA_ERROR_NOT_SUPPORTED; };
}

void fill(driver_table& table, PFN_cuGetProcAddress_v12000 get, bool per_thread) {
  constexpr cuuint64_t plain = CU_GET_PROC_ADDRESS_DEFAULT;
  constexpr cuuint64_t of_thread = CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM;
  const cuuint64_t on_stream = per_thread ? of_thread : plain;
#define DRIVER(function, version, type)                 \
  find(get, #function, version, plain, table.function); \
  fill_missing(table.function);
#define DRIVER_ON_STREAM(function, version, type)           \
  find(get, #function, version, on_stream, table.function); \
  fill_missing(table.function);
#include "driver.def"
}

cudaError_t start(ground& runtime) {
  void* const library = dlopen("libcuda.so.1", RTLD_NOW);
  if (library == nullptr) return cudaErrorInsufficientDriver;
  void* const symbol = dlsym(library, "cuGetProcAddress_v2");
  if (symbol == nullptr) return cudaErrorInsufficientDriver;
  const auto get = reinterpret_cast<PFN_cuGetProcAddress_v12000>(symbol);
  fill(runtime.driver.tables[0], get, false);
  fill(runtime.driver.tables[1], get, true);
  const driver_table& d = runtime.driver.tables[0];
  int version = 0;
  if (const CUresult e = d.cuDriverGetVersion(&version); e != CUDA_SUCCESS) return error_of(e);
  if (version / 1000 < CUDART_VERSION / 1000) return cudaErrorInsufficientDriver;
  if (const CUresult e = d.cuInit(0); e != CUDA_SUCCESS) return error_of(e);
  int devices = 0;
  if (const CUresult e = d.cuDeviceGetCount(&devices); e != CUDA_SUCCESS) return error_of(e);
  runtime.contexts.resize(static_cast<std::size_t>(devices));
  return devices == 0 ? cudaErrorNoDevice : cudaSuccess;
}

ground& the_ground() {
  static auto* const only = [] {
    auto* const g = new ground;
    g->driver.state = start(*g);
    found_already.store(&g->driver, std::memory_order_release);
    return g;
  }();
  return *only;
}

// Static TLS, because every call reads these; a dlopened library can have a few bytes of it.
__attribute__((tls_model("initial-exec"))) thread_local cudaError_t last = cudaSuccess;
__attribute__((tls_model("initial-exec"))) thread_local int chosen = 0;

}  // namespace

std::atomic<const found_driver*> found_already;
const found_driver& find_driver() { return the_ground().driver; }

cudaError_t context_of(int device, CUcontext* context) {
  ground& g = the_ground();
  const std::lock_guard lock{g.mutex};
  if (device < 0 || static_cast<std::size_t>(device) >= g.contexts.size()) return cudaErrorInvalidDevice;
  CUcontext& kept = g.contexts[static_cast<std::size_t>(device)];
  CUdevice d = 0;
  if (const CUresult e = driver().cuDeviceGet(&d, device); e != CUDA_SUCCESS) return error_of(e);
  // Other code may have reset the kept context; retaining returns the current one.
  CUcontext retained = nullptr;
  if (const CUresult e = driver().cuDevicePrimaryCtxRetain(&retained, d); e != CUDA_SUCCESS) return error_of(e);
  if (retained == kept) static_cast<void>(driver().cuDevicePrimaryCtxRelease(d));
  kept = retained;
  *context = retained;
  return cudaSuccess;
}

void forget_contexts(int device) {
  ground& g = the_ground();
  const std::lock_guard lock{g.mutex};
  CUcontext& kept = g.contexts[static_cast<std::size_t>(device)];
  if (kept != nullptr) g.gone.push_back(kept);
  any_gone = true;
  kept = nullptr;
}

cudaError_t enter() {
  if (const cudaError_t e = initialise(); e != cudaSuccess) return e;
  CUcontext context = nullptr;
  if (const CUresult e = driver().cuCtxGetCurrent(&context); e != CUDA_SUCCESS) return error_of(e);
  if (context != nullptr && any_gone.load(std::memory_order_relaxed)) {
    ground& g = the_ground();
    const std::lock_guard lock{g.mutex};
    for (const CUcontext old : g.gone) {
      if (old == context) context = nullptr;  // another thread has reset the device
    }
  }
  if (context != nullptr) return cudaSuccess;
  if (const cudaError_t e = context_of(chosen, &context); e != cudaSuccess) return e;
  return error_of(driver().cuCtxSetCurrent(context));
}

cudaError_t remember(cudaError_t error) {
  // "Not ready" is a query's result and no error: cudaGetLastError does not repeat it.
  if (error != cudaSuccess && error != cudaErrorNotReady) last = error;
  return error;
}

cudaError_t last_error(bool clear) {
  const cudaError_t e = last;
  if (clear) last = cudaSuccess;
  return e;
}

int& chosen_device() { return chosen; }

}  // namespace gpumem::simcudart
