// The double's functions about memory: plain, pinned, mapped, stream-ordered, and what copies and sets it.
#include <cstring>

#include "world.hpp"

using namespace gpumem::simcuda;  // NOLINT: the driver's functions are global

namespace {

constexpr std::uint64_t granule = std::uint64_t{2} << 20;
constexpr std::uint64_t copy_ns = 10'000;  // that a copy or a fill keeps its stream busy

std::uint64_t rounded(std::uint64_t bytes) { return (bytes + granule - 1) / granule * granule; }
std::uint64_t number_of(const void* p) { return static_cast<std::uint64_t>(reinterpret_cast<std::uintptr_t>(p)); }

CUresult allocate(gpu& g, CUdeviceptr* at, std::size_t bytes) {
  const auto got = bytes <= small_blocks::largest ? g.small->alloc(bytes) : g.sim->alloc(rounded(bytes));
  if (!got) return error_of(got.why());
  g.allocations[*got] = bytes;
  *at = *got;
  return CUDA_SUCCESS;
}

CUresult release(gpu& g, CUdeviceptr at) {
  const gpumem::status done = g.small->owns(at) ? g.small->free(at) : g.sim->free(at);
  if (!done) return error_of(done);
  g.allocations.erase(at);
  g.managed.erase(at);
  g.pool->synchronised();
  return CUDA_SUCCESS;
}

/// The work of a copy or a fill: its bytes are touched on the device side of it, and moved where there are any.
CUresult touch(CUstream handle, std::uint64_t at, std::uint64_t bytes) {
  CUstream_st* s = nullptr;
  gpu* on = nullptr;
  if (const CUresult e = find_stream(handle, &s, &on); e != CUDA_SUCCESS) return e;
  gpu* const whose = owner_of(at);
  if (whose == on) {
    on->sim->enqueue_use(s->sim, copy_ns, at, bytes);
    if (s->graph != nullptr) s->graph->uses.push_back({at, bytes, copy_ns});
  }
  return CUDA_SUCCESS;
}

void* pointer(CUdeviceptr at) { return reinterpret_cast<void*>(static_cast<std::uintptr_t>(at)); }

CUresult copy(void* to, const void* from, std::size_t bytes, CUstream s, bool to_device, bool from_device) {
  if (to_device) {
    if (const CUresult e = touch(s, number_of(to), bytes); e != CUDA_SUCCESS) return e;
  }
  if (from_device) {
    if (const CUresult e = touch(s, number_of(from), bytes); e != CUDA_SUCCESS) return e;
  }
  if (the_world().config.host_memory) std::memmove(to, from, bytes);
  return CUDA_SUCCESS;
}

CUresult synchronise_stream(CUstream handle) {
  CUstream_st* s = nullptr;
  gpu* on = nullptr;
  if (const CUresult e = find_stream(handle, &s, &on); e != CUDA_SUCCESS) return e;
  const auto f = on->sim->record(s->sim);
  if (!f) return error_of(f.why());
  const gpumem::status done = on->sim->wait_host(*f);
  on->sim->drop(*f);
  return error_of(done);
}

template <typename Unit>
CUresult fill(CUdeviceptr at, Unit value, std::size_t count, CUstream s) {
  if (const CUresult e = touch(s, at, count * sizeof(Unit)); e != CUDA_SUCCESS) return e;
  if (!the_world().config.host_memory) return CUDA_SUCCESS;
  for (std::size_t i = 0; i < count; ++i) std::memcpy(static_cast<Unit*>(pointer(at)) + i, &value, sizeof value);
  return CUDA_SUCCESS;
}

}  // namespace

extern "C" {

CUresult CUDAAPI cuMemGetInfo_v2(std::size_t* free_bytes, std::size_t* total_bytes) {
  SIMCUDA_ENTER("cuMemGetInfo");
  gpu* on = nullptr;
  if (const CUresult e = current(&on); e != CUDA_SUCCESS) return e;
  const auto info = on->sim->memory();
  if (!info) return error_of(info.why());
  *free_bytes = info->free_bytes;
  *total_bytes = info->total_bytes;
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuMemAlloc_v2(CUdeviceptr* at, std::size_t bytes) {
  SIMCUDA_ENTER("cuMemAlloc");
  gpu* on = nullptr;
  if (const CUresult e = current(&on); e != CUDA_SUCCESS) return e;
  if (at == nullptr || bytes == 0) return CUDA_ERROR_INVALID_VALUE;
  if (const CUresult e = unsafe_call(); e != CUDA_SUCCESS) return e;
  return allocate(*on, at, bytes);
}

CUresult CUDAAPI cuMemAllocPitch_v2(CUdeviceptr* at, std::size_t* pitch, std::size_t width, std::size_t height,
                                    unsigned int /*element*/) {
  SIMCUDA_ENTER("cuMemAllocPitch");
  gpu* on = nullptr;
  if (const CUresult e = current(&on); e != CUDA_SUCCESS) return e;
  if (width == 0 || height == 0) return CUDA_ERROR_INVALID_VALUE;
  if (const CUresult e = unsafe_call(); e != CUDA_SUCCESS) return e;
  *pitch = (width + 511) / 512 * 512;
  return allocate(*on, at, *pitch * height);
}

CUresult CUDAAPI cuMemAllocManaged(CUdeviceptr* at, std::size_t bytes, unsigned int /*flags*/) {
  SIMCUDA_ENTER("cuMemAllocManaged");
  gpu* on = nullptr;
  if (const CUresult e = current(&on); e != CUDA_SUCCESS) return e;
  if (bytes == 0) return CUDA_ERROR_INVALID_VALUE;
  if (const CUresult e = unsafe_call(); e != CUDA_SUCCESS) return e;
  const CUresult made = allocate(*on, at, bytes);
  if (made == CUDA_SUCCESS) on->managed.insert(*at);
  return made;
}

CUresult CUDAAPI cuMemFree_v2(CUdeviceptr at) {
  SIMCUDA_ENTER("cuMemFree");
  if (at == 0) return CUDA_SUCCESS;
  gpu* on = nullptr;
  if (const CUresult e = current(&on); e != CUDA_SUCCESS) return e;
  if (const CUresult e = unsafe_call(); e != CUDA_SUCCESS) return e;
  gpu* const whose = owner_of(at);
  if (whose == nullptr || whose->allocations.count(at) == 0) return CUDA_ERROR_INVALID_VALUE;
  if (whose->pool->owns(at)) {
    whose->allocations.erase(at);
    if (const gpumem::status s = whose->sim->synchronize(); !s) return error_of(s);
    return error_of(whose->pool->free(at, {}));
  }
  return release(*whose, at);
}

CUresult CUDAAPI cuMemHostAlloc(void** at, std::size_t bytes, unsigned int /*flags*/) {
  SIMCUDA_ENTER("cuMemHostAlloc");
  gpu* on = nullptr;
  if (const CUresult e = current(&on); e != CUDA_SUCCESS) return e;
  if (const CUresult e = unsafe_call(); e != CUDA_SUCCESS) return e;
  const auto got = on->sim->alloc_host(bytes);
  if (!got) return error_of(got.why());
  on->pinned[*got] = bytes;
  *at = pointer(*got);
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuMemFreeHost(void* at) {
  SIMCUDA_ENTER("cuMemFreeHost");
  gpu* on = nullptr;
  if (const CUresult e = current(&on); e != CUDA_SUCCESS) return e;
  if (const CUresult e = unsafe_call(); e != CUDA_SUCCESS) return e;
  for (const auto& g : the_world().gpus) {
    const auto found = g->pinned.find(number_of(at));
    if (found == g->pinned.end()) continue;
    const CUresult freed = error_of(g->sim->free_host(found->first));
    if (freed == CUDA_SUCCESS) g->pinned.erase(found);
    return freed;
  }
  return CUDA_ERROR_INVALID_VALUE;
}

CUresult CUDAAPI cuMemGetAddressRange_v2(CUdeviceptr* base, std::size_t* bytes, CUdeviceptr at) {
  SIMCUDA_ENTER("cuMemGetAddressRange");
  gpu* const whose = owner_of(at);
  if (whose == nullptr) return CUDA_ERROR_NOT_FOUND;
  const auto found = std::prev(whose->allocations.upper_bound(at));
  if (base != nullptr) *base = found->first;
  if (bytes != nullptr) *bytes = found->second;
  return CUDA_SUCCESS;
}

// --- mapped pages -------------------------------------------------------------------------------------------------

CUresult CUDAAPI cuMemGetAllocationGranularity(std::size_t* bytes, const CUmemAllocationProp* /*prop*/,
                                               CUmemAllocationGranularity_flags /*which*/) {
  SIMCUDA_ENTER("cuMemGetAllocationGranularity");
  *bytes = granule;
  return CUDA_SUCCESS;
}

/// Address ranges and page runs know their device by the access that is set; here all are of the current one.
static CUresult current_or_first(gpu** on) {
  if (current(on) == CUDA_SUCCESS) return CUDA_SUCCESS;
  *on = the_world().gpus.front().get();
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuMemAddressReserve(CUdeviceptr* at, std::size_t bytes, std::size_t /*alignment*/,
                                     CUdeviceptr /*hint*/, unsigned long long flags) {
  SIMCUDA_ENTER("cuMemAddressReserve");
  if (flags != 0) return CUDA_ERROR_INVALID_VALUE;
  gpu* on = nullptr;
  if (const CUresult e = current_or_first(&on); e != CUDA_SUCCESS) return e;
  const auto got = on->sim->reserve(bytes);
  if (!got) return error_of(got.why());
  *at = *got;
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuMemAddressFree(CUdeviceptr at, std::size_t bytes) {
  SIMCUDA_ENTER("cuMemAddressFree");
  gpu* on = nullptr;
  if (const CUresult e = current_or_first(&on); e != CUDA_SUCCESS) return e;
  return error_of(on->sim->release_range(at, bytes));
}

CUresult CUDAAPI cuMemCreate(CUmemGenericAllocationHandle* handle, std::size_t bytes, const CUmemAllocationProp* prop,
                             unsigned long long /*flags*/) {
  SIMCUDA_ENTER("cuMemCreate");
  world& w = the_world();
  if (prop->location.type != CU_MEM_LOCATION_TYPE_DEVICE || prop->location.id < 0 ||
      static_cast<std::size_t>(prop->location.id) >= w.gpus.size()) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  gpu& g = *w.gpus[static_cast<std::size_t>(prop->location.id)];
  const auto got = g.sim->create(bytes);
  if (!got) return error_of(got.why());
  *handle = w.next_handle++;
  g.runs[*handle] = *got;
  return CUDA_SUCCESS;
}

static gpu* owner_of_run(CUmemGenericAllocationHandle handle) {
  for (const auto& g : the_world().gpus) {
    if (g->runs.count(handle) != 0) return g.get();
  }
  return nullptr;
}

CUresult CUDAAPI cuMemRelease(CUmemGenericAllocationHandle handle) {
  SIMCUDA_ENTER("cuMemRelease");
  gpu* const g = owner_of_run(handle);
  if (g == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const CUresult done = error_of(g->sim->destroy(g->runs.at(handle)));
  if (done == CUDA_SUCCESS) g->runs.erase(handle);
  return done;
}

CUresult CUDAAPI cuMemMap(CUdeviceptr at, std::size_t bytes, std::size_t offset, CUmemGenericAllocationHandle handle,
                          unsigned long long flags) {
  SIMCUDA_ENTER("cuMemMap");
  gpu* const g = owner_of_run(handle);
  if (g == nullptr || offset != 0 || flags != 0) return CUDA_ERROR_INVALID_VALUE;
  return error_of(g->sim->map(at, bytes, g->runs.at(handle)));
}

CUresult CUDAAPI cuMemUnmap(CUdeviceptr at, std::size_t bytes) {
  SIMCUDA_ENTER("cuMemUnmap");
  gpu* on = nullptr;
  if (const CUresult e = current_or_first(&on); e != CUDA_SUCCESS) return e;
  return error_of(on->sim->unmap(at, bytes));
}

CUresult CUDAAPI cuMemSetAccess(CUdeviceptr at, std::size_t bytes, const CUmemAccessDesc* access, std::size_t count) {
  SIMCUDA_ENTER("cuMemSetAccess");
  world& w = the_world();
  if (count == 0) return CUDA_ERROR_INVALID_VALUE;
  for (std::size_t i = 0; i < count; ++i) {
    if (access[i].location.id < 0 || static_cast<std::size_t>(access[i].location.id) >= w.gpus.size()) {
      return CUDA_ERROR_INVALID_DEVICE;
    }
  }
  return error_of(w.gpus[static_cast<std::size_t>(access[0].location.id)]->sim->set_access(at, bytes));
}

// --- the stream-ordered pool ----------------------------------------------------------------------------------------

CUresult CUDAAPI cuMemAllocAsync(CUdeviceptr* at, std::size_t bytes, CUstream handle) {
  SIMCUDA_ENTER("cuMemAllocAsync");
  CUstream_st* s = nullptr;
  gpu* on = nullptr;
  if (const CUresult e = find_stream(handle, &s, &on); e != CUDA_SUCCESS) return e;
  if (s->graph != nullptr) return CUDA_ERROR_NOT_SUPPORTED;  // memory nodes are not modelled
  if (bytes == 0) return *at = 0, CUDA_SUCCESS;
  const auto got = on->pool->alloc(bytes, s->sim);
  if (!got) return error_of(got.why());
  on->allocations[*got] = bytes;
  *at = *got;
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuMemFreeAsync(CUdeviceptr at, CUstream handle) {
  SIMCUDA_ENTER("cuMemFreeAsync");
  if (at == 0) return CUDA_SUCCESS;
  CUstream_st* s = nullptr;
  gpu* on = nullptr;
  if (const CUresult e = find_stream(handle, &s, &on); e != CUDA_SUCCESS) return e;
  gpu* const whose = owner_of(at);
  if (whose == nullptr || whose->allocations.count(at) == 0) return CUDA_ERROR_INVALID_VALUE;
  if (!whose->pool->owns(at)) return release(*whose, at);
  whose->allocations.erase(at);
  return error_of(whose->pool->free(at, s->sim));
}

CUresult CUDAAPI cuDeviceGetDefaultMemPool(CUmemoryPool* pool, CUdevice device) {
  SIMCUDA_ENTER("cuDeviceGetDefaultMemPool");
  world& w = the_world();
  if (device < 0 || static_cast<std::size_t>(device) >= w.gpus.size()) return CUDA_ERROR_INVALID_DEVICE;
  *pool = reinterpret_cast<CUmemoryPool>(w.gpus[static_cast<std::size_t>(device)]->pool.get());
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuMemPoolSetAttribute(CUmemoryPool pool, CUmemPool_attribute which, void* value) {
  SIMCUDA_ENTER("cuMemPoolSetAttribute");
  if (which == CU_MEMPOOL_ATTR_RELEASE_THRESHOLD) {
    std::memcpy(&reinterpret_cast<async_pool*>(pool)->threshold, value, sizeof(std::uint64_t));
  }
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuMemPoolGetAttribute(CUmemoryPool pool, CUmemPool_attribute which, void* value) {
  SIMCUDA_ENTER("cuMemPoolGetAttribute");
  const auto* const p = reinterpret_cast<async_pool*>(pool);
  std::uint64_t figure = 0;
  switch (which) {
    case CU_MEMPOOL_ATTR_RELEASE_THRESHOLD:
      figure = p->threshold;
      break;
    case CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT:
      figure = p->reserved();
      break;
    case CU_MEMPOOL_ATTR_USED_MEM_CURRENT:
      figure = p->used();
      break;
    default:
      return CUDA_ERROR_NOT_SUPPORTED;
  }
  std::memcpy(value, &figure, sizeof figure);
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuMemPoolTrimTo(CUmemoryPool pool, std::size_t keep) {
  SIMCUDA_ENTER("cuMemPoolTrimTo");
  reinterpret_cast<async_pool*>(pool)->trim(keep);
  return CUDA_SUCCESS;
}

// --- copies and fills -----------------------------------------------------------------------------------------------

CUresult CUDAAPI cuMemcpyHtoDAsync_v2(CUdeviceptr to, const void* from, std::size_t bytes, CUstream s) {
  SIMCUDA_ENTER("cuMemcpyHtoDAsync");
  return copy(pointer(to), from, bytes, s, true, false);
}
CUresult CUDAAPI cuMemcpyDtoHAsync_v2(void* to, CUdeviceptr from, std::size_t bytes, CUstream s) {
  SIMCUDA_ENTER("cuMemcpyDtoHAsync");
  return copy(to, pointer(from), bytes, s, false, true);
}
CUresult CUDAAPI cuMemcpyDtoDAsync_v2(CUdeviceptr to, CUdeviceptr from, std::size_t bytes, CUstream s) {
  SIMCUDA_ENTER("cuMemcpyDtoDAsync");
  return copy(pointer(to), pointer(from), bytes, s, true, true);
}
CUresult CUDAAPI cuMemcpyAsync(CUdeviceptr to, CUdeviceptr from, std::size_t bytes, CUstream s) {
  SIMCUDA_ENTER("cuMemcpyAsync");
  return copy(pointer(to), pointer(from), bytes, s, owner_of(to) != nullptr, owner_of(from) != nullptr);
}
CUresult CUDAAPI cuMemcpyHtoD_v2(CUdeviceptr to, const void* from, std::size_t bytes) {
  SIMCUDA_ENTER("cuMemcpyHtoD");
  if (const CUresult e = copy(pointer(to), from, bytes, nullptr, true, false); e != CUDA_SUCCESS) return e;
  return synchronise_stream(nullptr);
}
CUresult CUDAAPI cuMemcpyDtoH_v2(void* to, CUdeviceptr from, std::size_t bytes) {
  SIMCUDA_ENTER("cuMemcpyDtoH");
  if (const CUresult e = copy(to, pointer(from), bytes, nullptr, false, true); e != CUDA_SUCCESS) return e;
  return synchronise_stream(nullptr);
}
CUresult CUDAAPI cuMemcpy(CUdeviceptr to, CUdeviceptr from, std::size_t bytes) {
  SIMCUDA_ENTER("cuMemcpy");
  const CUresult e =
      copy(pointer(to), pointer(from), bytes, nullptr, owner_of(to) != nullptr, owner_of(from) != nullptr);
  return e != CUDA_SUCCESS ? e : synchronise_stream(nullptr);
}
CUresult CUDAAPI cuMemsetD8Async(CUdeviceptr at, unsigned char value, std::size_t count, CUstream s) {
  SIMCUDA_ENTER("cuMemsetD8Async");
  return fill(at, value, count, s);
}
CUresult CUDAAPI cuMemsetD32Async(CUdeviceptr at, unsigned int value, std::size_t count, CUstream s) {
  SIMCUDA_ENTER("cuMemsetD32Async");
  return fill(at, value, count, s);
}
CUresult CUDAAPI cuMemsetD8_v2(CUdeviceptr at, unsigned char value, std::size_t count) {
  SIMCUDA_ENTER("cuMemsetD8");
  return fill(at, value, count, nullptr);
}

}  // extern "C"
