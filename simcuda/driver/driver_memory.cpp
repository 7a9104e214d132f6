// The simulated driver: plain, pinned and mapped memory.
#include <unistd.h>

#include <string>

#include "driver_state.hpp"
#include "run_recorder.hpp"
#include "shared_cards_lock.hpp"
#include "values.hpp"

using namespace gpumem::simcuda;  // NOLINT: the driver's functions are global

namespace {

constexpr std::uint64_t page = std::uint64_t{2} << 20;

std::uint64_t rounded(std::uint64_t bytes) {
  const std::uint64_t granule = the_driver_state().config.granularity_bytes;
  return (bytes + granule - 1) / granule * granule;
}
/// Small requests share segments only at the default granularity; below it, each gets exactly its size.
bool shares_a_segment(std::uint64_t bytes) {
  return bytes <= small_blocks::largest && the_driver_state().config.granularity_bytes == small_blocks::segment_bytes;
}

CUresult allocate(gpu& device, CUdeviceptr* address, std::size_t bytes) {
  const shared_cards_lock turn{device};
  const auto got = shares_a_segment(bytes) ? device.small->alloc(bytes) : device.sim->alloc(rounded(bytes));
  if (!got) {
    note_refused(device, "cuMemAlloc", bytes);
    return error_of(got.why());
  }
  device.allocations[*got] = bytes;
  note_taken(device, bytes);
  if (CUcontext context = current_context(); context != nullptr && context->number != 0)
    device.in_context[*got] = context;
  *address = *got;
  return CUDA_SUCCESS;
}

/// Managed memory may exceed the card: blocks that do not fit are placed on the host.
CUresult allocate_managed(gpu& card, CUdeviceptr* block, std::size_t bytes) {
  SIMCUDA_ASSIGN(free, card.sim->memory());
  if (rounded(bytes) <= free.free_bytes) return allocate(card, block, bytes);
  SIMCUDA_ASSIGN(got, card.sim->alloc_host(rounded(bytes)));
  card.allocations[got] = bytes;
  card.beyond.insert(got);
  note_taken(card, bytes);
  note_beyond(bytes);
  *block = got;
  return CUDA_SUCCESS;
}

bool is_device_location(const CUmemLocation& location) {
  return location.type == CU_MEM_LOCATION_TYPE_DEVICE && location.id >= 0 &&
         static_cast<std::size_t>(location.id) < the_driver_state().gpus.size();
}

bool names_host(const CUmemLocation& location) {
  return location.type == CU_MEM_LOCATION_TYPE_HOST || location.type == CU_MEM_LOCATION_TYPE_HOST_NUMA;
}

/// Whether cuMemCreate accepts the location as the host's memory: "On systems where NUMA is not available
/// CUmemAllocationProp::CUmemLocation::id must be set to 0."
bool is_host_location(const CUmemLocation& location) {
  if (location.type != CU_MEM_LOCATION_TYPE_HOST_NUMA || location.id == 0) return names_host(location);
  return ::access(("/sys/devices/system/node/node" + std::to_string(location.id)).c_str(), F_OK) == 0;
}

/// Whether the host may be given access: only its own memory has the host as a location of access.
bool all_on_host(const gpu& holder, CUdeviceptr begin, std::size_t bytes) {
  for (auto range = holder.mapped.lower_bound(begin); range != holder.mapped.end() && range->first < begin + bytes;
       ++range) {
    if (!range->second.on_host) return false;
  }
  return true;
}

/// Returns the device of the range. A new range belongs to the current device, or to the first one without a context.
gpu* range_device(CUdeviceptr address) {
  gpu* device = address != 0 ? holder_of(address) : nullptr;
  if (device == nullptr && current(&device) != CUDA_SUCCESS) device = the_driver_state().gpus.front().get();
  return device;
}

}  // namespace

namespace gpumem::simcuda {

CUresult release(gpu& device, CUdeviceptr address) {
  const status done = device.small->owns(address)         ? device.small->free(address)
                      : device.beyond.erase(address) != 0 ? device.sim->free_host(address)
                                                          : device.sim->free(address);
  if (!done) return error_of(done);
  if (const auto gone = device.allocations.find(address); gone != device.allocations.end()) {
    note_given_back(device, gone->second);
    forget_values(address, gone->second);
    device.allocations.erase(gone);
  }
  device.managed.erase(address);
  device.pool->synchronised();
  return CUDA_SUCCESS;
}

}  // namespace gpumem::simcuda

extern "C" {

CUresult CUDAAPI cuMemGetInfo_v2(std::size_t* free_bytes, std::size_t* total_bytes) {
  SIMCUDA_ENTER("cuMemGetInfo");
  SIMCUDA_FIND_CURRENT(device);
  const shared_cards_lock turn{*device};
  SIMCUDA_ASSIGN(info, device->sim->memory());
  *free_bytes = info.free_bytes;
  *total_bytes = info.total_bytes;
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuMemAlloc_v2(CUdeviceptr* dptr, std::size_t bytes) {
  SIMCUDA_ENTER("cuMemAlloc");
  SIMCUDA_FIND_CURRENT(device);
  if (dptr == nullptr || bytes == 0) return CUDA_ERROR_INVALID_VALUE;
  if (const CUresult e = unsafe_call(); e != CUDA_SUCCESS) return e;
  return allocate(*device, dptr, bytes);
}

CUresult CUDAAPI cuMemAllocPitch_v2(CUdeviceptr* dptr, std::size_t* pitch, std::size_t width, std::size_t height,
                                    unsigned int /*element*/) {
  SIMCUDA_ENTER("cuMemAllocPitch");
  SIMCUDA_FIND_CURRENT(device);
  if (width == 0 || height == 0) return CUDA_ERROR_INVALID_VALUE;
  if (const CUresult e = unsafe_call(); e != CUDA_SUCCESS) return e;
  *pitch = (width + 511) / 512 * 512;
  return allocate(*device, dptr, *pitch * height);
}

CUresult CUDAAPI cuMemAllocManaged(CUdeviceptr* dptr, std::size_t bytes, unsigned int /*flags*/) {
  SIMCUDA_ENTER("cuMemAllocManaged");
  SIMCUDA_FIND_CURRENT(device);
  if (bytes == 0) return CUDA_ERROR_INVALID_VALUE;
  if (const CUresult e = unsafe_call(); e != CUDA_SUCCESS) return e;
  const CUresult made = allocate_managed(*device, dptr, bytes);
  if (made == CUDA_SUCCESS) device->managed.insert(*dptr);
  return made;
}

CUresult CUDAAPI cuMemFree_v2(CUdeviceptr dptr) {
  SIMCUDA_ENTER("cuMemFree");
  if (dptr == 0) return CUDA_SUCCESS;
  SIMCUDA_FIND_CURRENT(device);
  if (const CUresult e = unsafe_call(); e != CUDA_SUCCESS) return e;
  if (const auto freed = free_of_graph(dptr)) return *freed;
  gpu* const owner = owner_of(dptr);
  if (owner == nullptr || owner->allocations.count(dptr) == 0) return CUDA_ERROR_INVALID_VALUE;
  if (owner->pool->owns(dptr)) {
    note_given_back(*owner, owner->allocations[dptr]);
    owner->allocations.erase(dptr);
    if (const gpumem::status s = owner->sim->synchronize(); !s) return error_of(s);
    return error_of(owner->pool->free(dptr, {}));
  }
  return release(*owner, dptr);
}

CUresult CUDAAPI cuMemHostAlloc(void** pp, std::size_t bytes, unsigned int /*flags*/) {
  SIMCUDA_ENTER("cuMemHostAlloc");
  SIMCUDA_FIND_CURRENT(device);
  if (const CUresult e = unsafe_call(); e != CUDA_SUCCESS) return e;
  SIMCUDA_ASSIGN(got, device->sim->alloc_host(bytes));
  device->pinned[got] = bytes;
  *pp = pointer(got);
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuMemFreeHost(void* ptr) {
  SIMCUDA_ENTER("cuMemFreeHost");
  SIMCUDA_FIND_CURRENT(device);
  if (const CUresult e = unsafe_call(); e != CUDA_SUCCESS) return e;
  for (const auto& g : the_driver_state().gpus) {
    const auto found = g->pinned.find(number_of(ptr));
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

CUresult CUDAAPI cuMemAddressReserve(CUdeviceptr* ptr, std::size_t bytes, std::size_t /*alignment*/,
                                     CUdeviceptr /*hint*/, unsigned long long flags) {
  SIMCUDA_ENTER("cuMemAddressReserve");
  if (flags != 0) return CUDA_ERROR_INVALID_VALUE;
  gpu* const device = range_device(0);
  SIMCUDA_ASSIGN(got, device->sim->reserve(bytes));
  device->ranges[got] = bytes;
  *ptr = got;
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuMemAddressFree(CUdeviceptr ptr, std::size_t bytes) {
  SIMCUDA_ENTER("cuMemAddressFree");
  gpu* const device = range_device(ptr);
  const CUresult done = error_of(device->sim->release_range(ptr, bytes));
  if (done == CUDA_SUCCESS) device->ranges.erase(ptr);
  return done;
}

CUresult CUDAAPI cuMemCreate(CUmemGenericAllocationHandle* handle, std::size_t bytes, const CUmemAllocationProp* prop,
                             unsigned long long /*flags*/) {
  SIMCUDA_ENTER("cuMemCreate");
  driver_state& w = the_driver_state();
  if (const CUresult e = unsafe_call(); e != CUDA_SUCCESS) return e;
  const bool on_host = is_host_location(prop->location);
  if (!on_host && !is_device_location(prop->location)) return CUDA_ERROR_INVALID_VALUE;
  // "HOST allocations are not IPC capable and CUmemAllocationProp::requestedHandleTypes must be 0"
  if (prop->location.type == CU_MEM_LOCATION_TYPE_HOST && prop->requestedHandleTypes != CU_MEM_HANDLE_TYPE_NONE) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  // No simulated card has a fabric.
  if ((prop->requestedHandleTypes & CU_MEM_HANDLE_TYPE_FABRIC) != 0 ||
      (!w.config.exportable && prop->requestedHandleTypes != CU_MEM_HANDLE_TYPE_NONE)) {
    return CUDA_ERROR_NOT_PERMITTED;
  }
  gpu& g = on_host ? *range_device(0) : *w.gpus[static_cast<std::size_t>(prop->location.id)];
  const shared_cards_lock turn{g};
  const auto got = on_host ? g.sim->create_host_pages(bytes) : g.sim->create(bytes);
  if (!got) {
    if (!on_host) note_refused(g, "cuMemCreate", bytes);
    return error_of(got.why());
  }
  *handle = w.next_handle++;
  if (on_host) {
    g.host_runs[*handle] = prop->location;
  } else {
    note_taken(g, bytes);
  }
  g.runs[*handle] = *got;
  g.run_bytes[*handle] = bytes;
  if (prop->requestedHandleTypes != CU_MEM_HANDLE_TYPE_NONE) g.exportable.insert(*handle);
  return CUDA_SUCCESS;
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
    const bool on_host = g->host_runs.erase(handle) != 0;
    if (!on_host && g->imports.count(handle) == 0) note_given_back(*g, bytes);
    forget_import(*g, handle);
  }
  return done;
}

CUresult CUDAAPI cuMemMap(CUdeviceptr ptr, std::size_t bytes, std::size_t offset, CUmemGenericAllocationHandle handle,
                          unsigned long long flags) {
  SIMCUDA_ENTER("cuMemMap");
  gpu* const g = owner_of_run(handle);
  if (g == nullptr || offset != 0 || flags != 0) return CUDA_ERROR_INVALID_VALUE;
  if (const CUresult e = unsafe_call(); e != CUDA_SUCCESS) return e;
  const CUresult done = error_of(g->sim->map(ptr, bytes, g->runs.at(handle)));
  if (done == CUDA_SUCCESS) g->mapped[ptr] = {bytes, {}, handle, g->host_runs.count(handle) != 0};
  return done;
}

CUresult CUDAAPI cuMemUnmap(CUdeviceptr ptr, std::size_t bytes) {
  SIMCUDA_ENTER("cuMemUnmap");
  if (const CUresult e = unsafe_call(); e != CUDA_SUCCESS) return e;
  gpu* const device = range_device(ptr);
  const CUresult done = error_of(device->sim->unmap(ptr, bytes));
  if (done != CUDA_SUCCESS) return done;
  forget_values(ptr, bytes);
  for (auto mapping = device->mapped.lower_bound(ptr);
       mapping != device->mapped.end() && mapping->first < ptr + bytes;) {
    const CUmemGenericAllocationHandle gone = mapping->second.handle;
    mapping = device->mapped.erase(mapping);
    forget_import(*device, gone);
  }
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuMemSetAccess(CUdeviceptr ptr, std::size_t bytes, const CUmemAccessDesc* access, std::size_t count) {
  SIMCUDA_ENTER("cuMemSetAccess");
  if (count == 0) return CUDA_ERROR_INVALID_VALUE;
  if (const CUresult e = unsafe_call(); e != CUDA_SUCCESS) return e;
  gpu* const holder = range_device(ptr);
  for (std::size_t i = 0; i < count; ++i) {
    const CUmemLocation& location = access[i].location;
    if (location.type == CU_MEM_LOCATION_TYPE_DEVICE) {
      if (!is_device_location(location)) return CUDA_ERROR_INVALID_DEVICE;
    } else if (!names_host(location) || !all_on_host(*holder, ptr, bytes)) {
      return CUDA_ERROR_INVALID_VALUE;
    }
  }
  if (const CUresult e = error_of(holder->sim->set_access(ptr, bytes)); e != CUDA_SUCCESS) return e;
  for (auto mapping = holder->mapped.lower_bound(ptr); mapping != holder->mapped.end() && mapping->first < ptr + bytes;
       ++mapping) {
    for (std::size_t i = 0; i < count; ++i) {
      const int accessor = names_host(access[i].location) ? mapped_range::host : access[i].location.id;
      if (access[i].flags == CU_MEM_ACCESS_FLAGS_PROT_NONE) {
        mapping->second.reachable_from.erase(accessor);
      } else {
        mapping->second.reachable_from.insert(accessor);
      }
    }
  }
  return CUDA_SUCCESS;
}

}  // extern "C"
