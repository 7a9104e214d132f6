// The simulated runtime: further functions that frameworks call. Each maps to the driver function of the same meaning
// and returns its error.
#include <cstring>

#include "runtime.hpp"

using namespace gpumem::simcudart;  // NOLINT: the runtime's functions are global

extern "C" {

// --- devices --------------------------------------------------------------------------------------------------------

FORWARD_WITHOUT_CONTEXT(cudaDeviceGetPCIBusId, (char* text, int bytes, int device),
                        cuDeviceGetPCIBusId(text, bytes, device))
FORWARD_WITHOUT_CONTEXT(cudaDeviceGetByPCIBusId, (int* device, const char* text), cuDeviceGetByPCIBusId(device, text))
FORWARD_WITHOUT_CONTEXT(cudaDeviceGetP2PAttribute, (int* value, cudaDeviceP2PAttr attr, int src_device, int dst_device),
                        cuDeviceGetP2PAttribute(value, static_cast<CUdevice_P2PAttribute>(attr), src_device,
                                                dst_device))
FORWARD(cudaDeviceGetLimit, (std::size_t * value, cudaLimit limit), cuCtxGetLimit(value, static_cast<CUlimit>(limit)))
FORWARD(cudaDeviceSetLimit, (cudaLimit limit, std::size_t value), cuCtxSetLimit(static_cast<CUlimit>(limit), value))
FORWARD_WITHOUT_CONTEXT(cudaDeviceGetGraphMemAttribute, (int device, cudaGraphMemAttributeType attr, void* value),
                        cuDeviceGetGraphMemAttribute(device, static_cast<CUgraphMem_attribute>(attr), value))
FORWARD_WITHOUT_CONTEXT(cudaDeviceSetGraphMemAttribute, (int device, cudaGraphMemAttributeType attr, void* value),
                        cuDeviceSetGraphMemAttribute(device, static_cast<CUgraphMem_attribute>(attr), value))
FORWARD_WITHOUT_CONTEXT(cudaDeviceGraphMemTrim, (int device), cuDeviceGraphMemTrim(device))
cudaError_t CUDARTAPI cudaDeviceSetCacheConfig(cudaFuncCache) { return cudaSuccess; }
cudaError_t CUDARTAPI cudaCtxResetPersistingL2Cache() { return cudaSuccess; }

// --- memory of the host, of other processes, of pools ---------------------------------------------------------------

FORWARD(cudaHostRegister, (void* ptr, std::size_t bytes, unsigned int flags), cuMemHostRegister(ptr, bytes, flags))
FORWARD(cudaHostUnregister, (void* ptr), cuMemHostUnregister(ptr))
FORWARD(cudaHostGetFlags, (unsigned int* flags, void* p_host), cuMemHostGetFlags(flags, p_host))
cudaError_t CUDARTAPI cudaIpcOpenMemHandle(void** dev_ptr, cudaIpcMemHandle_t handle, unsigned int flags) {
  return call([&] {
    CUipcMemHandle of_driver;
    std::memcpy(&of_driver, &handle, sizeof of_driver);
    CUdeviceptr address = 0;
    const CUresult done = driver().cuIpcOpenMemHandle(&address, of_driver, flags);
    return address_into(dev_ptr, done, address);
  });
}
FORWARD(cudaIpcCloseMemHandle, (void* dev_ptr), cuIpcCloseMemHandle(address_of(dev_ptr)))
FORWARD(cudaIpcGetEventHandle, (cudaIpcEventHandle_t * handle, cudaEvent_t event),
        cuIpcGetEventHandle(reinterpret_cast<CUipcEventHandle*>(handle), event))
cudaError_t CUDARTAPI cudaIpcOpenEventHandle(cudaEvent_t* event, cudaIpcEventHandle_t handle) {
  return call([&] {
    CUipcEventHandle of_driver;
    std::memcpy(&of_driver, &handle, sizeof of_driver);
    return driver().cuIpcOpenEventHandle(event, of_driver);
  });
}
cudaError_t CUDARTAPI cudaMemPoolSetAccess(cudaMemPool_t pool, const cudaMemAccessDesc* access, std::size_t count) {
  static_assert(sizeof(cudaMemAccessDesc) == sizeof(CUmemAccessDesc));
  return call_without_context(
      [&] { return driver().cuMemPoolSetAccess(pool, reinterpret_cast<const CUmemAccessDesc*>(access), count); });
}
FORWARD_WITHOUT_CONTEXT(cudaMemPoolGetAccess, (cudaMemAccessFlags * flags, cudaMemPool_t pool, cudaMemLocation* where),
                        cuMemPoolGetAccess(reinterpret_cast<CUmemAccess_flags*>(flags), pool,
                                           reinterpret_cast<CUmemLocation*>(where)))
#if CUDART_VERSION >= 13000
cudaError_t CUDARTAPI cudaMemAdvise(const void*, std::size_t, cudaMemoryAdvise, cudaMemLocation) { return cudaSuccess; }
#else
cudaError_t CUDARTAPI cudaMemAdvise(const void*, std::size_t, cudaMemoryAdvise, int /*device*/) { return cudaSuccess; }
#endif

// --- graphs ---------------------------------------------------------------------------------------------------------

FORWARD_WITHOUT_CONTEXT(cudaGraphGetNodes, (cudaGraph_t graph, cudaGraphNode_t* nodes, std::size_t* count),
                        cuGraphGetNodes(graph, nodes, count))

// --- device variables: always zeros, because writes are ignored -----------------------------------------------------

cudaError_t CUDARTAPI cudaMemcpyToSymbol(const void* symbol, const void*, std::size_t, std::size_t, cudaMemcpyKind) {
  return remember(symbol == nullptr ? cudaErrorInvalidSymbol : cudaSuccess);
}
cudaError_t CUDARTAPI cudaMemcpyToSymbolAsync(const void* symbol, const void*, std::size_t, std::size_t, cudaMemcpyKind,
                                              cudaStream_t) {
  return remember(symbol == nullptr ? cudaErrorInvalidSymbol : cudaSuccess);
}
cudaError_t CUDARTAPI cudaMemcpyFromSymbol(void* dst, const void* symbol, std::size_t bytes, std::size_t,
                                           cudaMemcpyKind kind) {
  if (symbol == nullptr) return remember(cudaErrorInvalidSymbol);
  if (kind == cudaMemcpyDeviceToHost) std::memset(dst, 0, bytes);
  return cudaSuccess;
}

// --- libraries ------------------------------------------------------------------------------------------------------

#if CUDART_VERSION >= 13000

FORWARD(cudaLibraryLoadData,
        (cudaLibrary_t * library, const void* code, cudaJitOption*, void**, unsigned int, cudaLibraryOption*, void**,
         unsigned int),
        cuLibraryLoadData(reinterpret_cast<CUlibrary*>(library), code, nullptr, nullptr, 0, nullptr, nullptr, 0))
cudaError_t CUDARTAPI cudaLibraryLoadFromFile(cudaLibrary_t* library, const char* file, cudaJitOption* options,
                                              void** values, unsigned int count, cudaLibraryOption* library_options,
                                              void** library_values, unsigned int library_count) {
  return cudaLibraryLoadData(library, file, options, values, count, library_options, library_values, library_count);
}
FORWARD(cudaLibraryUnload, (cudaLibrary_t library), cuLibraryUnload(reinterpret_cast<CUlibrary>(library)))
FORWARD(cudaLibraryGetKernel, (cudaKernel_t * kernel, cudaLibrary_t library, const char* name),
        cuLibraryGetKernel(reinterpret_cast<CUkernel*>(kernel), reinterpret_cast<CUlibrary>(library), name))
FORWARD(cudaLibraryGetKernelCount, (unsigned int* count, cudaLibrary_t library),
        cuLibraryGetKernelCount(count, reinterpret_cast<CUlibrary>(library)))
cudaError_t CUDARTAPI cudaLibraryGetGlobal(void** dptr, std::size_t* bytes, cudaLibrary_t library, const char* name) {
  return call([&] {
    CUdeviceptr address = 0;
    const CUresult done = driver().cuLibraryGetGlobal(&address, bytes, reinterpret_cast<CUlibrary>(library), name);
    return address_into(dptr, done, address);
  });
}
cudaError_t CUDARTAPI cudaLibraryGetManaged(void** dptr, std::size_t* bytes, cudaLibrary_t library, const char* name) {
  return call([&] {
    CUdeviceptr address = 0;
    const CUresult done = driver().cuLibraryGetManaged(&address, bytes, reinterpret_cast<CUlibrary>(library), name);
    return address_into(dptr, done, address);
  });
}
cudaError_t CUDARTAPI cudaKernelSetAttributeForDevice(cudaKernel_t, cudaFuncAttribute, int, int) { return cudaSuccess; }
#endif
cudaError_t CUDARTAPI cudaGetFuncBySymbol(cudaFunction_t* function, const void* symbol) {
  return cudaGetKernel(reinterpret_cast<cudaKernel_t*>(function), symbol);
}

// --- cooperative launches -------------------------------------------------------------------------------------------

cudaError_t CUDARTAPI cudaLaunchCooperativeKernel(const void* function, dim3 grid, dim3 block, void** arguments,
                                                  std::size_t shared_bytes, cudaStream_t stream) {
  return cudaLaunchKernel(function, grid, block, arguments, shared_bytes, stream);
}

}  // extern "C"

// CUDA 12's functions of these names have no edges and locations.
#if CUDART_VERSION >= 13000
ON_STREAM(cudaStreamUpdateCaptureDependencies, _ptsz,
          (cudaStream_t stream, cudaGraphNode_t* nodes, const cudaGraphEdgeData* edges, std::size_t count,
           unsigned int flags),
          {
            return table.cuStreamUpdateCaptureDependencies(
                stream, nodes, reinterpret_cast<const CUgraphEdgeData*>(edges), count, flags);
          })
#else
ON_STREAM(cudaStreamUpdateCaptureDependencies, _ptsz,
          (cudaStream_t stream, cudaGraphNode_t* nodes, std::size_t count, unsigned int flags),
          { return table.cuStreamUpdateCaptureDependencies(stream, nodes, nullptr, count, flags); })
#endif
ON_STREAM(cudaGraphUpload, _ptsz, (cudaGraphExec_t exec, cudaStream_t stream),
          { return table.cuGraphUpload(exec, stream); })
#if CUDART_VERSION >= 13000
ON_STREAM(cudaMemPrefetchAsync, _ptsz,
          (const void* /*p*/, std::size_t /*bytes*/, cudaMemLocation /*to*/, unsigned int /*flags*/,
           cudaStream_t stream),
          {
            return table.cuStreamQuery(stream) == CUDA_ERROR_INVALID_HANDLE ? CUDA_ERROR_INVALID_HANDLE : CUDA_SUCCESS;
          })
#else
ON_STREAM(cudaMemPrefetchAsync, _ptsz, (const void* /*p*/, std::size_t /*bytes*/, int /*device*/, cudaStream_t stream),
          {
            return table.cuStreamQuery(stream) == CUDA_ERROR_INVALID_HANDLE ? CUDA_ERROR_INVALID_HANDLE : CUDA_SUCCESS;
          })
#endif
