// Functions that programs look up but these cards lack (multicast, green contexts): they fail as in a driver without
// the feature. Also memory operations of streams, registered host memory, and log callbacks.
#include <cstring>
#include <iterator>

#include "driver_state.hpp"
#include "run_recorder.hpp"
#include "values.hpp"

using namespace gpumem::simcuda;  // NOLINT: the driver's functions are global

#define REFUSED(name, parameters)    \
  CUresult CUDAAPI name parameters { \
    SIMCUDA_ENTER(#name);            \
    return CUDA_ERROR_NOT_SUPPORTED; \
  }

namespace {

/// Writes a word on a stream: immediately, since a program may poll it, unless the stream captures.
template <typename Word>
CUresult write_word(CUstream handle, CUdeviceptr address, Word value) {
  SIMCUDA_FIND_STREAM(s, device, handle);
  device->sim->enqueue(s->sim, 0);
  const auto write = [address, value] {
    std::memcpy(reinterpret_cast<void*>(static_cast<std::uintptr_t>(address)), &value, sizeof value);
    write_value(address, sizeof value);
  };
  const bool real = the_driver_state().config.host_memory;
  if (s->graph != nullptr) {
    s->graph->uses.push_back({0, 0, 0, real ? std::function<void()>{write} : std::function<void()>{}});
  } else if (real) {
    write();
  }
  return CUDA_SUCCESS;
}

}  // namespace

extern "C" {

// --- handles of allocations -----------------------------------------------------------------------------------------

REFUSED(cuMemRetainAllocationHandle, (CUmemGenericAllocationHandle*, void*))

CUresult CUDAAPI cuMemGetAllocationPropertiesFromHandle(CUmemAllocationProp* prop,
                                                        CUmemGenericAllocationHandle handle) {
  SIMCUDA_ENTER("cuMemGetAllocationPropertiesFromHandle");
  const gpu* const g = owner_of_run(handle);
  if (g == nullptr || prop == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *prop = {};
  prop->type = CU_MEM_ALLOCATION_TYPE_PINNED;
  const auto on_host = g->host_runs.find(handle);
  prop->location = on_host != g->host_runs.end() ? on_host->second
                                                 : CUmemLocation{.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = g->ordinal};
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuMemGetAccess(unsigned long long* flags, const CUmemLocation* location, CUdeviceptr ptr) {
  SIMCUDA_ENTER("cuMemGetAccess");
  for (const auto& g : the_driver_state().gpus) {
    const auto next = g->mapped.upper_bound(ptr);
    if (next == g->mapped.begin()) continue;
    const auto& [begin, pages] = *std::prev(next);
    if (ptr - begin >= pages.bytes) continue;
    const bool is_device = location->type == CU_MEM_LOCATION_TYPE_DEVICE;
    const bool may = pages.reachable_from.count(is_device ? location->id : mapped_range::host) != 0;
    *flags = may ? CU_MEM_ACCESS_FLAGS_PROT_READWRITE : CU_MEM_ACCESS_FLAGS_PROT_NONE;
    return CUDA_SUCCESS;
  }
  return CUDA_ERROR_INVALID_VALUE;
}

// --- multicast and green contexts -----------------------------------------------------------------------------------

REFUSED(cuMulticastCreate, (CUmemGenericAllocationHandle*, const CUmulticastObjectProp*))
REFUSED(cuMulticastAddDevice, (CUmemGenericAllocationHandle, CUdevice))
REFUSED(cuMulticastBindMem, (CUmemGenericAllocationHandle, std::size_t, CUmemGenericAllocationHandle, std::size_t,
                             std::size_t, unsigned long long))
REFUSED(cuMulticastBindAddr, (CUmemGenericAllocationHandle, std::size_t, CUdeviceptr, std::size_t, unsigned long long))
REFUSED(cuMulticastUnbind, (CUmemGenericAllocationHandle, CUdevice, std::size_t, std::size_t))
REFUSED(cuMulticastGetGranularity, (std::size_t*, const CUmulticastObjectProp*, CUmulticastGranularity_flags))
REFUSED(cuDeviceGetDevResource, (CUdevice, CUdevResource*, CUdevResourceType))
REFUSED(cuDevSmResourceSplitByCount,
        (CUdevResource*, unsigned int*, const CUdevResource*, CUdevResource*, unsigned int, unsigned int))
REFUSED(cuDevResourceGenerateDesc, (CUdevResourceDesc*, CUdevResource*, unsigned int))
REFUSED(cuGreenCtxCreate, (CUgreenCtx*, CUdevResourceDesc, CUdevice, unsigned int))
REFUSED(cuGreenCtxDestroy, (CUgreenCtx))
REFUSED(cuGreenCtxStreamCreate, (CUstream*, CUgreenCtx, unsigned int, int))
REFUSED(cuCtxFromGreenCtx, (CUcontext*, CUgreenCtx))

// --- pools ----------------------------------------------------------------------------------------------------------

CUresult CUDAAPI cuMemPoolSetAccess(CUmemoryPool pool, const CUmemAccessDesc*, std::size_t) {
  SIMCUDA_ENTER("cuMemPoolSetAccess");
  return pool == nullptr ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;  // one address space: every card can access it
}
CUresult CUDAAPI cuMemPoolGetAccess(CUmemAccess_flags* flags, CUmemoryPool, CUmemLocation*) {
  SIMCUDA_ENTER("cuMemPoolGetAccess");
  *flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
  return CUDA_SUCCESS;
}
CUresult CUDAAPI cuDeviceGetGraphMemAttribute(CUdevice device, CUgraphMem_attribute attr, void* value) {
  SIMCUDA_ENTER("cuDeviceGetGraphMemAttribute");
  SIMCUDA_FIND_DEVICE(g, device);
  const graph_memory usage = graph_memory_of(*g);
  const bool used = attr == CU_GRAPH_MEM_ATTR_USED_MEM_CURRENT || attr == CU_GRAPH_MEM_ATTR_USED_MEM_HIGH;
  const bool high = attr == CU_GRAPH_MEM_ATTR_USED_MEM_HIGH || attr == CU_GRAPH_MEM_ATTR_RESERVED_MEM_HIGH;
  const graph_memory& selected = high ? g->graph_highs : usage;
  const cuuint64_t figure = used ? selected.used : selected.reserved;
  std::memcpy(value, &figure, sizeof figure);
  return CUDA_SUCCESS;
}
/// Resets a high-water mark to the current value.
CUresult CUDAAPI cuDeviceSetGraphMemAttribute(CUdevice device, CUgraphMem_attribute attr, void*) {
  SIMCUDA_ENTER("cuDeviceSetGraphMemAttribute");
  SIMCUDA_FIND_DEVICE(g, device);
  if (attr == CU_GRAPH_MEM_ATTR_USED_MEM_HIGH) g->graph_highs.used = graph_memory_of(*g).used;
  if (attr == CU_GRAPH_MEM_ATTR_RESERVED_MEM_HIGH) g->graph_highs.reserved = graph_memory_of(*g).reserved;
  return CUDA_SUCCESS;
}
CUresult CUDAAPI cuDeviceGraphMemTrim(CUdevice device) {
  SIMCUDA_ENTER("cuDeviceGraphMemTrim");
  SIMCUDA_FIND_DEVICE(g, device);
  trim_graph_memory(*g);
  return CUDA_SUCCESS;
}

// --- host memory ----------------------------------------------------------------------------------------------------

/// Pins the memory on the GPU of the calling thread's context, as cuMemHostAlloc does.
CUresult CUDAAPI cuMemHostRegister_v2(void* ptr, std::size_t bytes, unsigned int) {
  SIMCUDA_ENTER("cuMemHostRegister");
  SIMCUDA_FIND_CURRENT(device);
  if (ptr == nullptr || bytes == 0) return CUDA_ERROR_INVALID_VALUE;
  const auto begin = static_cast<CUdeviceptr>(reinterpret_cast<std::uintptr_t>(ptr));
  for (const auto& g : the_driver_state().gpus) {
    const auto next = g->registered.lower_bound(begin);
    if (next != g->registered.end() && next->first - begin < bytes) return CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED;
    if (next == g->registered.begin()) continue;
    const auto& [from, length] = *std::prev(next);
    if (begin - from < length) return CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED;
  }
  device->registered[begin] = bytes;
  return CUDA_SUCCESS;
}
CUresult CUDAAPI cuMemHostUnregister(void* ptr) {
  SIMCUDA_ENTER("cuMemHostUnregister");
  const auto begin = static_cast<CUdeviceptr>(reinterpret_cast<std::uintptr_t>(ptr));
  for (const auto& g : the_driver_state().gpus) {
    if (g->registered.erase(begin) != 0) return CUDA_SUCCESS;
  }
  return CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED;
}
CUresult CUDAAPI cuMemHostGetDevicePointer_v2(CUdeviceptr* on_device, void* on_host, unsigned int) {
  SIMCUDA_ENTER("cuMemHostGetDevicePointer");
  *on_device = static_cast<CUdeviceptr>(reinterpret_cast<std::uintptr_t>(on_host));
  return CUDA_SUCCESS;
}
CUresult CUDAAPI cuMemHostGetFlags(unsigned int* flags, void*) {
  SIMCUDA_ENTER("cuMemHostGetFlags");
  *flags = 0;
  return CUDA_SUCCESS;
}
SIMCUDA_SUCCEEDS(cuMemAdvise_v2, "cuMemAdvise", (CUdeviceptr, std::size_t, CUmem_advise, CUmemLocation))
SIMCUDA_SUCCEEDS(cuMemPrefetchAsync_v2, "cuMemPrefetchAsync",
                 (CUdeviceptr, std::size_t, CUmemLocation, unsigned int, CUstream))

// --- memory operations of streams -----------------------------------------------------------------------------------

CUresult CUDAAPI cuStreamWriteValue32_v2(CUstream stream, CUdeviceptr addr, cuuint32_t value, unsigned int) {
  SIMCUDA_ENTER("cuStreamWriteValue32");
  return write_word(stream, addr, value);
}
// Its name before CUDA 12, by which PyTorch 2.6 looks for it.
#undef cuStreamWriteValue32
CUresult CUDAAPI cuStreamWriteValue32(CUstream stream, CUdeviceptr addr, cuuint32_t value, unsigned int flags) {
  return cuStreamWriteValue32_v2(stream, addr, value, flags);
}
CUresult CUDAAPI cuStreamWriteValue64_v2(CUstream stream, CUdeviceptr addr, cuuint64_t value, unsigned int) {
  SIMCUDA_ENTER("cuStreamWriteValue64");
  return write_word(stream, addr, value);
}
REFUSED(cuStreamWaitValue32_v2, (CUstream, CUdeviceptr, cuuint32_t, unsigned int))
REFUSED(cuStreamBatchMemOp_v2, (CUstream, unsigned int, CUstreamBatchMemOpParams*, unsigned int))

// --- graphs ---------------------------------------------------------------------------------------------------------

/// Every piece of captured work counts as a node; nodes cannot be inspected.
CUresult CUDAAPI cuGraphGetNodes(CUgraph graph, CUgraphNode* nodes, std::size_t* count) {
  SIMCUDA_ENTER("cuGraphGetNodes");
  if (graph == nullptr || !graph->alive || count == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (nodes == nullptr) return *count = graph->uses.size(), CUDA_SUCCESS;
  for (std::size_t i = 0; i < *count; ++i) {
    nodes[i] = i < graph->uses.size() ? reinterpret_cast<CUgraphNode>(&graph->uses[i]) : nullptr;
  }
  return CUDA_SUCCESS;
}
// Graphs have no edges: their work runs in the order of the calls.
SIMCUDA_SUCCEEDS(cuStreamUpdateCaptureDependencies_v2, "cuStreamUpdateCaptureDependencies",
                 (CUstream, CUgraphNode*, const CUgraphEdgeData*, std::size_t, unsigned int))
CUresult CUDAAPI cuGraphUpload(CUgraphExec exec, CUstream) {
  SIMCUDA_ENTER("cuGraphUpload");
  return exec != nullptr && exec->alive ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

// --- NVIDIA's own runtime ------------------------------------------------------------------------------------------

/// Undocumented tables. The simulated driver has none, so NVIDIA's runtime ends with its own error.
CUresult CUDAAPI cuGetExportTable(const void** table, const CUuuid*) {
  SIMCUDA_ENTER_EARLY("cuGetExportTable");
  note_foreign_runtime(__builtin_return_address(0));
  if (table != nullptr) *table = nullptr;
  return CUDA_ERROR_NOT_SUPPORTED;
}

// --- the driver's log, profilers ------------------------------------------------------------------------------------

#if CUDA_VERSION >= 12090
CUresult CUDAAPI cuLogsRegisterCallback(CUlogsCallback, void*, CUlogsCallbackHandle* handle) {
  SIMCUDA_ENTER_EARLY("cuLogsRegisterCallback");
  if (handle != nullptr) *handle = nullptr;
  return CUDA_SUCCESS;
}
CUresult CUDAAPI cuLogsUnregisterCallback(CUlogsCallbackHandle) {
  SIMCUDA_ENTER_EARLY("cuLogsUnregisterCallback");
  return CUDA_SUCCESS;
}
#endif
SIMCUDA_SUCCEEDS(cuProfilerStart, "cuProfilerStart", ())
SIMCUDA_SUCCEEDS(cuProfilerStop, "cuProfilerStop", ())

}  // extern "C"
