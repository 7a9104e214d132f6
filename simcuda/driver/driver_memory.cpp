// The double's functions about memory: plain, pinned, mapped.
#include <cstring>

#include "keep_report.hpp"
#include "shared_turn.hpp"
#include "values.hpp"
#include "world.hpp"

using namespace gpumem::simcuda;  // NOLINT: the driver's functions are global

namespace {

constexpr std::uint64_t page = std::uint64_t{2} << 20;

std::uint64_t rounded(std::uint64_t bytes) {
  const std::uint64_t granule = the_world().config.granularity_bytes;
  return (bytes + granule - 1) / granule * granule;
}
/// With a granularity below a segment, requests get exactly the size asked for, and share nothing.
bool shares_a_segment(std::uint64_t bytes) {
  return bytes <= small_blocks::largest && the_world().config.granularity_bytes == small_blocks::segment_bytes;
}
std::uint64_t number_of(const void* p) { return static_cast<std::uint64_t>(reinterpret_cast<std::uintptr_t>(p)); }

CUresult allocate(gpu& g, CUdeviceptr* at, std::size_t bytes) {
  const shared_turn turn{g};
  const auto got = shares_a_segment(bytes) ? g.small->alloc(bytes) : g.sim->alloc(rounded(bytes));
  if (!got) {
    note_refused(g, "cuMemAlloc", bytes);
    return error_of(got.why());
  }
  g.allocations[*got] = bytes;
  note_taken(g, bytes);
  if (CUcontext here = current_context(); here != nullptr && here->number != 0) g.in_context[*got] = here;
  *at = *got;
  return CUDA_SUCCESS;
}

/// Managed memory may be larger than the card: what does not fit lies on the host.
CUresult allocate_managed(gpu& card, CUdeviceptr* block, std::size_t bytes) {
  const auto free = card.sim->memory();
  if (!free) return error_of(free.why());
  if (rounded(bytes) <= free->free_bytes) return allocate(card, block, bytes);
  const auto got = card.sim->alloc_host(rounded(bytes));
  if (!got) return error_of(got.why());
  card.allocations[*got] = bytes;
  card.beyond.insert(*got);
  note_taken(card, bytes);
  note_beyond(bytes);
  *block = *got;
  return CUDA_SUCCESS;
}

void* pointer(CUdeviceptr at) { return reinterpret_cast<void*>(static_cast<std::uintptr_t>(at)); }

/// The device of the range. A new range belongs to the current device, or to the first one if no context is current.
gpu* range_device(CUdeviceptr at) {
  gpu* on = at != 0 ? holder_of(at) : nullptr;
  if (on == nullptr && current(&on) != CUDA_SUCCESS) on = the_world().gpus.front().get();
  return on;
}

}  // namespace

namespace gpumem::simcuda {

CUresult release(gpu& g, CUdeviceptr at) {
  const status done = g.small->owns(at)         ? g.small->free(at)
                      : g.beyond.erase(at) != 0 ? g.sim->free_host(at)
                                                : g.sim->free(at);
  if (!done) return error_of(done);
  if (const auto gone = g.allocations.find(at); gone != g.allocations.end()) {
    note_given_back(g, gone->second);
    forget_values(at, gone->second);
    g.allocations.erase(gone);
  }
  g.managed.erase(at);
  g.pool->synchronised();
  return CUDA_SUCCESS;
}

}  // namespace gpumem::simcuda

extern "C" {

CUresult CUDAAPI cuMemGetInfo_v2(std::size_t* free_bytes, std::size_t* total_bytes) {
  SIMCUDA_ENTER("cuMemGetInfo");
  gpu* on = nullptr;
  if (const CUresult e = current(&on); e != CUDA_SUCCESS) return e;
  const shared_turn turn{*on};
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
  const CUresult made = allocate_managed(*on, at, bytes);
  if (made == CUDA_SUCCESS) on->managed.insert(*at);
  return made;
}

CUresult CUDAAPI cuMemFree_v2(CUdeviceptr at) {
  SIMCUDA_ENTER("cuMemFree");
  if (at == 0) return CUDA_SUCCESS;
  gpu* on = nullptr;
  if (const CUresult e = current(&on); e != CUDA_SUCCESS) return e;
  if (const CUresult e = unsafe_call(); e != CUDA_SUCCESS) return e;
  if (const auto freed = free_of_graph(at)) return *freed;
  gpu* const whose = owner_of(at);
  if (whose == nullptr || whose->allocations.count(at) == 0) return CUDA_ERROR_INVALID_VALUE;
  if (whose->pool->owns(at)) {
    note_given_back(*whose, whose->allocations[at]);
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

// --- mapped pages -------------------------------------------------------------------------------------------------

CUresult CUDAAPI cuMemGetAllocationGranularity(std::size_t* bytes, const CUmemAllocationProp* /*prop*/,
                                               CUmemAllocationGranularity_flags /*which*/) {
  SIMCUDA_ENTER("cuMemGetAllocationGranularity");
  *bytes = page;
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuMemAddressReserve(CUdeviceptr* at, std::size_t bytes, std::size_t /*alignment*/,
                                     CUdeviceptr /*hint*/, unsigned long long flags) {
  SIMCUDA_ENTER("cuMemAddressReserve");
  if (flags != 0) return CUDA_ERROR_INVALID_VALUE;
  gpu* const on = range_device(0);
  const auto got = on->sim->reserve(bytes);
  if (!got) return error_of(got.why());
  on->ranges[*got] = bytes;
  *at = *got;
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuMemAddressFree(CUdeviceptr at, std::size_t bytes) {
  SIMCUDA_ENTER("cuMemAddressFree");
  gpu* const on = range_device(at);
  const CUresult done = error_of(on->sim->release_range(at, bytes));
  if (done == CUDA_SUCCESS) on->ranges.erase(at);
  return done;
}

CUresult CUDAAPI cuMemCreate(CUmemGenericAllocationHandle* handle, std::size_t bytes, const CUmemAllocationProp* prop,
                             unsigned long long /*flags*/) {
  SIMCUDA_ENTER("cuMemCreate");
  world& w = the_world();
  if (const CUresult e = unsafe_call(); e != CUDA_SUCCESS) return e;
  if (prop->location.type != CU_MEM_LOCATION_TYPE_DEVICE || prop->location.id < 0 ||
      static_cast<std::size_t>(prop->location.id) >= w.gpus.size()) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  // No card here has a fabric.
  if ((prop->requestedHandleTypes & CU_MEM_HANDLE_TYPE_FABRIC) != 0 ||
      (!w.config.exportable && prop->requestedHandleTypes != CU_MEM_HANDLE_TYPE_NONE)) {
    return CUDA_ERROR_NOT_PERMITTED;
  }
  gpu& g = *w.gpus[static_cast<std::size_t>(prop->location.id)];
  const shared_turn turn{g};
  const auto got = g.sim->create(bytes);
  if (!got) {
    note_refused(g, "cuMemCreate", bytes);
    return error_of(got.why());
  }
  note_taken(g, bytes);
  *handle = w.next_handle++;
  g.runs[*handle] = *got;
  g.run_bytes[*handle] = bytes;
  if (prop->requestedHandleTypes != CU_MEM_HANDLE_TYPE_NONE) g.exportable.insert(*handle);
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
  const std::uint64_t bytes = g->run_bytes[handle];
  const CUresult done = error_of(g->sim->destroy(g->runs.at(handle)));
  if (done == CUDA_SUCCESS) {
    g->runs.erase(handle);
    g->run_bytes.erase(handle);
    g->exportable.erase(handle);
    if (g->imports.count(handle) == 0) note_given_back(*g, bytes);
    forget_import(*g, handle);
  }
  return done;
}

CUresult CUDAAPI cuMemMap(CUdeviceptr at, std::size_t bytes, std::size_t offset, CUmemGenericAllocationHandle handle,
                          unsigned long long flags) {
  SIMCUDA_ENTER("cuMemMap");
  gpu* const g = owner_of_run(handle);
  if (g == nullptr || offset != 0 || flags != 0) return CUDA_ERROR_INVALID_VALUE;
  if (const CUresult e = unsafe_call(); e != CUDA_SUCCESS) return e;
  const CUresult done = error_of(g->sim->map(at, bytes, g->runs.at(handle)));
  if (done == CUDA_SUCCESS) g->mapped[at] = {bytes, {}, handle};
  return done;
}

CUresult CUDAAPI cuMemUnmap(CUdeviceptr at, std::size_t bytes) {
  SIMCUDA_ENTER("cuMemUnmap");
  if (const CUresult e = unsafe_call(); e != CUDA_SUCCESS) return e;
  gpu* const on = range_device(at);
  const CUresult done = error_of(on->sim->unmap(at, bytes));
  if (done != CUDA_SUCCESS) return done;
  forget_values(at, bytes);
  for (auto it = on->mapped.lower_bound(at); it != on->mapped.end() && it->first < at + bytes;) {
    const CUmemGenericAllocationHandle gone = it->second.of;
    it = on->mapped.erase(it);
    forget_import(*on, gone);
  }
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuMemSetAccess(CUdeviceptr at, std::size_t bytes, const CUmemAccessDesc* access, std::size_t count) {
  SIMCUDA_ENTER("cuMemSetAccess");
  world& w = the_world();
  if (count == 0) return CUDA_ERROR_INVALID_VALUE;
  if (const CUresult e = unsafe_call(); e != CUDA_SUCCESS) return e;
  for (std::size_t i = 0; i < count; ++i) {
    if (access[i].location.id < 0 || static_cast<std::size_t>(access[i].location.id) >= w.gpus.size()) {
      return CUDA_ERROR_INVALID_DEVICE;
    }
  }
  gpu* const holder = range_device(at);
  if (const CUresult e = error_of(holder->sim->set_access(at, bytes)); e != CUDA_SUCCESS) return e;
  for (auto it = holder->mapped.lower_bound(at); it != holder->mapped.end() && it->first < at + bytes; ++it) {
    for (std::size_t i = 0; i < count; ++i) {
      if (access[i].flags == CU_MEM_ACCESS_FLAGS_PROT_NONE) {
        it->second.reachable_from.erase(access[i].location.id);
      } else {
        it->second.reachable_from.insert(access[i].location.id);
      }
    }
  }
  return CUDA_SUCCESS;
}

}  // extern "C"
