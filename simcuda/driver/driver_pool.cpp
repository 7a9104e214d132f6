// The simulated driver: the stream-ordered pool of a device; each device has exactly one (async_pool.hpp).
#include <algorithm>
#include <cstring>
#include <map>

#include "driver_state.hpp"
#include "run_recorder.hpp"
#include "shared_cards_lock.hpp"

using namespace gpumem::simcuda;  // NOLINT: the driver's functions are global

namespace {

CUmemoryPool pool_of(const gpu& device) { return reinterpret_cast<CUmemoryPool>(device.pool.get()); }

/// The pool's largest figures since the program reset them.
struct high_marks {
  std::uint64_t used = 0;
  std::uint64_t reserved = 0;
};
std::map<const async_pool*, high_marks> high_of;

/// Returns null if there is no such pool, or its device was reset.
async_pool* find_pool(CUmemoryPool pool) {
  for (const auto& g : the_driver_state().gpus) {
    if (pool_of(*g) == pool) return g->pool.get();
  }
  return nullptr;
}

}  // namespace

extern "C" {

CUresult CUDAAPI cuMemAllocAsync(CUdeviceptr* dptr, std::size_t bytes, CUstream handle) {
  SIMCUDA_ENTER("cuMemAllocAsync");
  SIMCUDA_FIND_STREAM(s, device, handle);
  if (bytes == 0) return *dptr = 0, CUDA_SUCCESS;
  const shared_cards_lock turn{*device};
  if (s->graph != nullptr) return allocate_in_graph(*s, *device, dptr, bytes);
  const auto got = device->pool->alloc(bytes, s->sim);
  if (!got) {
    note_refused(*device, "cuMemAllocAsync", bytes);
    return error_of(got.why());
  }
  device->allocations[*got] = bytes;
  device->sim->handed_out(*got, bytes, s->sim);
  note_taken(*device, bytes);
  high_marks& high = high_of[device->pool.get()];
  high.used = std::max(high.used, device->pool->used());
  high.reserved = std::max(high.reserved, device->pool->reserved());
  *dptr = *got;
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuMemFreeAsync(CUdeviceptr dptr, CUstream handle) {
  SIMCUDA_ENTER("cuMemFreeAsync");
  if (dptr == 0) return CUDA_SUCCESS;
  SIMCUDA_FIND_STREAM(s, device, handle);
  if (s->graph != nullptr) return free_in_graph(*s, dptr);
  if (const auto freed = free_of_graph(dptr)) return *freed;
  gpu* const owner = owner_of(dptr);
  if (owner == nullptr || owner->allocations.count(dptr) == 0) return CUDA_ERROR_INVALID_VALUE;
  if (!owner->pool->owns(dptr)) return release(*owner, dptr);
  note_given_back(*owner, owner->allocations[dptr]);
  owner->allocations.erase(dptr);
  return error_of(owner->pool->free(dptr, s->sim));
}

CUresult CUDAAPI cuDeviceGetDefaultMemPool(CUmemoryPool* pool, CUdevice device) {
  SIMCUDA_ENTER("cuDeviceGetDefaultMemPool");
  SIMCUDA_FIND_DEVICE(g, device);
  *pool = pool_of(*g);
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuMemPoolSetAttribute(CUmemoryPool pool, CUmemPool_attribute attr, void* value) {
  SIMCUDA_ENTER("cuMemPoolSetAttribute");
  async_pool* const p = find_pool(pool);
  if (p == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (attr == CU_MEMPOOL_ATTR_RELEASE_THRESHOLD) std::memcpy(&p->threshold, value, sizeof p->threshold);
  // "The only value that can be set is zero": restart the high-water mark at the current value.
  if (attr == CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH) high_of[p].reserved = p->reserved();
  if (attr == CU_MEMPOOL_ATTR_USED_MEM_HIGH) high_of[p].used = p->used();
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuMemPoolGetAttribute(CUmemoryPool pool, CUmemPool_attribute attr, void* value) {
  SIMCUDA_ENTER("cuMemPoolGetAttribute");
  const async_pool* const p = find_pool(pool);
  if (p == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (attr == CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES || attr == CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC ||
      attr == CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES) {
    const int allowed = 1;
    std::memcpy(value, &allowed, sizeof allowed);
    return CUDA_SUCCESS;
  }
  const std::pair<CUmemPool_attribute, std::uint64_t> figures[] = {
      {CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, p->threshold},
      {CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT, p->reserved()},
      {CU_MEMPOOL_ATTR_USED_MEM_CURRENT, p->used()},
      {CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH, std::max(high_of[p].reserved, p->reserved())},
      {CU_MEMPOOL_ATTR_USED_MEM_HIGH, std::max(high_of[p].used, p->used())},
  };
  for (const auto& [name, figure] : figures) {
    if (name == attr) return std::memcpy(value, &figure, sizeof figure), CUDA_SUCCESS;
  }
  return CUDA_ERROR_NOT_SUPPORTED;
}

CUresult CUDAAPI cuMemPoolTrimTo(CUmemoryPool pool, std::size_t keep) {
  SIMCUDA_ENTER("cuMemPoolTrimTo");
  async_pool* const p = find_pool(pool);
  if (p == nullptr) return CUDA_ERROR_INVALID_VALUE;
  p->trim(keep);
  return CUDA_SUCCESS;
}

// ----------------------------------------------------------------------

CUresult CUDAAPI cuDeviceGetMemPool(CUmemoryPool* pool, CUdevice device) {
  SIMCUDA_ENTER("cuDeviceGetMemPool");
  return cuDeviceGetDefaultMemPool(pool, device);
}

CUresult CUDAAPI cuDeviceSetMemPool(CUdevice device, CUmemoryPool pool) {
  SIMCUDA_ENTER("cuDeviceSetMemPool");
  SIMCUDA_FIND_DEVICE(g, device);
  return pool == pool_of(*g) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult CUDAAPI cuMemAllocFromPoolAsync(CUdeviceptr* dptr, std::size_t bytes, CUmemoryPool pool, CUstream handle) {
  SIMCUDA_ENTER("cuMemAllocFromPoolAsync");
  SIMCUDA_FIND_STREAM(s, device, handle);
  return pool == pool_of(*device) ? cuMemAllocAsync(dptr, bytes, handle) : CUDA_ERROR_INVALID_VALUE;
}

}  // extern "C"
