// A library that replaces the driver, as a preloaded allocator does: it exports one function, and passes on the
// simulated driver's functions.
#include <cuda.h>
#include <cudaTypedefs.h>
#include <dlfcn.h>

#include <cstdio>
#include <cstring>

extern "C" __attribute__((visibility("default"))) CUresult CUDAAPI cuGetProcAddress_v2(
    const char* symbol, void** function, int version, cuuint64_t flags, CUdriverProcAddressQueryResult* how) {
  static const auto next = reinterpret_cast<PFN_cuGetProcAddress_v12000>(
      dlsym(dlopen(SIMCUDA_DRIVER, RTLD_NOW | RTLD_LOCAL), "cuGetProcAddress_v2"));
  const CUresult e = next(symbol, function, version, flags, how);
  if (e == CUDA_SUCCESS && std::strcmp(symbol, "cuMemAlloc") == 0) std::puts("the shim handed out cuMemAlloc");
  return e;
}
