// Calls that free counted memory (process_accounting.hpp).
#include "driver_calls.hpp"
#include "process_accounting.hpp"
#include "served.hpp"

namespace gpumem::preload {

CUresult CUDAAPI mem_retain(CUmemGenericAllocationHandle* handle, void* address) {
  const CUresult e = driver_call<entry::mem_retain>(handle, address);
  if (e == CUDA_SUCCESS) all_pages().retained(*handle);
  return e;
}

CUresult CUDAAPI mem_release(CUmemGenericAllocationHandle handle) {
  const charge_table::entry gone = all_pages().released(handle);  // first: the driver may reuse the handle
  const CUresult e = driver_call<entry::mem_release>(handle);
  refund(gone);
  return e;
}

CUresult CUDAAPI mem_map(CUdeviceptr ptr, std::size_t bytes, std::size_t offset, CUmemGenericAllocationHandle handle,
                         unsigned long long flags) {
  const CUresult e = driver_call<entry::mem_map>(ptr, bytes, offset, handle, flags);
  if (e == CUDA_SUCCESS) all_pages().mapped(ptr, bytes, handle);
  return e;
}

CUresult CUDAAPI mem_unmap(CUdeviceptr ptr, std::size_t bytes) {
  const CUresult e = driver_call<entry::mem_unmap>(ptr, bytes);
  if (e == CUDA_SUCCESS) all_pages().unmapped(ptr, bytes, [](const charge_table::entry& gone) { refund(gone); });
  return e;
}

CUresult CUDAAPI array_destroy(CUarray array) {
  return freed(handle_receipts(), reinterpret_cast<std::uintptr_t>(array),
               [array] { return driver_call<entry::array_destroy>(array); });
}

CUresult CUDAAPI mipmapped_array_destroy(CUmipmappedArray array) {
  return freed(handle_receipts(), reinterpret_cast<std::uintptr_t>(array),
               [array] { return driver_call<entry::mipmapped_array_destroy>(array); });
}

CUresult CUDAAPI device_graph_mem_trim(CUdevice device) {
  const CUresult e = driver_call<entry::device_graph_mem_trim>(device);
  cuuint64_t held = 0;
  if (e == CUDA_SUCCESS && calls() != nullptr && calls()->graph_memory != nullptr &&
      calls()->graph_memory(device, CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT, &held) == CUDA_SUCCESS) {
    graphs_hold(device, held);
  }
  return e;
}

}  // namespace gpumem::preload
