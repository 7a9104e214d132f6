// The simulated driver: handles of memory and events for other processes that share the cards (shared_cards.hpp).
// Without sharing, handles can be created but not opened, as with a driver without the feature.
//
// Imported memory takes none of the card here: it counts for the process that allocated it, as long as that process
// holds it. Its bytes are local and zero, because values do not pass between processes. Each process has its own time,
// too, so an event of another process is always done.
#include <sys/mman.h>
#include <unistd.h>

#include <cstring>

#include "driver_state.hpp"
#include "run_recorder.hpp"
#include "shared_cards_lock.hpp"

using namespace gpumem::simcuda;  // NOLINT: the driver's functions are global

namespace {

enum class exported : std::uint64_t {
  allocation = 0x73696d63'616c6c31,
  pages = 0x73696d63'70616731,
  event = 0x73696d63'65767431
};

/// The content of a handle.
struct ticket {
  exported kind{};
  std::uint64_t pid = 0;
  std::uint64_t began = 0;
  std::uint64_t object = 0;  ///< an address or a handle in the process that made the ticket
  std::uint64_t bytes = 0;
  std::int64_t card = 0;
};
static_assert(sizeof(ticket) <= sizeof(CUipcMemHandle) && sizeof(ticket) <= sizeof(CUipcEventHandle));

ticket made_here(exported kind, int card, std::uint64_t object, std::uint64_t bytes) {
  const shared_cards* const cards = the_driver_state().shared.get();
  return {kind, static_cast<std::uint64_t>(::getpid()), cards == nullptr ? 0 : cards->began(), object, bytes, card};
}

CUresult may_open(const ticket& ticket, exported kind) {
  const shared_cards* const cards = the_driver_state().shared.get();
  if (cards == nullptr) return CUDA_ERROR_NOT_SUPPORTED;
  if (ticket.kind != kind) return CUDA_ERROR_INVALID_VALUE;
  return cards->lives(ticket.pid, ticket.began) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}

gpu* on_card(std::int64_t card) {
  for (const auto& g : the_driver_state().gpus) {
    if (g->card == card) return g.get();
  }
  return nullptr;
}

std::size_t in_pages(std::size_t bytes) {
  const std::size_t page = the_driver_state().config.granularity_bytes;
  return (bytes + page - 1) / page * page;
}

/// Creates local pages in place of another process's.
CUresult import_pages(gpu& device, std::size_t bytes, CUmemGenericAllocationHandle* handle) {
  device.imported_bytes += bytes;
  const shared_cards_lock turn{device};
  const auto pages = device.sim->create(bytes);
  if (!pages) {
    device.imported_bytes -= bytes;
    return error_of(pages.why());
  }
  *handle = the_driver_state().next_handle++;
  device.runs[*handle] = *pages;
  device.run_bytes[*handle] = bytes;
  device.imports[*handle] = bytes;
  return CUDA_SUCCESS;
}

}  // namespace

namespace gpumem::simcuda {

void forget_import(gpu& device, CUmemGenericAllocationHandle handle) {
  const auto found = device.imports.find(handle);
  if (found == device.imports.end() || device.runs.count(handle) != 0) return;
  for (const auto& [at, range] : device.mapped) {
    if (range.handle == handle) return;
  }
  device.imported_bytes -= found->second;
  device.imports.erase(found);
}

}  // namespace gpumem::simcuda

extern "C" {

// --- allocations ----------------------------------------------------------------------------------------------------

/// The handle identifies the allocation, not the pointer's offset in it.
CUresult CUDAAPI cuIpcGetMemHandle(CUipcMemHandle* handle, CUdeviceptr dptr) {
  SIMCUDA_ENTER("cuIpcGetMemHandle");
  for (const auto& g : the_driver_state().gpus) {
    auto found = g->allocations.upper_bound(dptr);
    if (found == g->allocations.begin()) continue;
    --found;
    const auto& [begin, bytes] = *found;
    if (dptr - begin >= bytes) continue;
    if (g->managed.count(begin) != 0 || g->pool->owns(begin)) return CUDA_ERROR_INVALID_VALUE;
    const ticket t = made_here(exported::allocation, g->card, begin, bytes);
    *handle = {};
    std::memcpy(handle->reserved, &t, sizeof t);
    return CUDA_SUCCESS;
  }
  return CUDA_ERROR_INVALID_VALUE;
}

// "Contexts that may open CUipcMemHandles are restricted": not in the process that made the handle.
CUresult CUDAAPI cuIpcOpenMemHandle_v2(CUdeviceptr* pdptr, CUipcMemHandle handle, unsigned int flags) {
  SIMCUDA_ENTER("cuIpcOpenMemHandle");
  SIMCUDA_FIND_CURRENT(device);
  ticket t;
  std::memcpy(&t, handle.reserved, sizeof t);
  if (const CUresult e = may_open(t, exported::allocation); e != CUDA_SUCCESS) return e;
  if (flags != CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS) return CUDA_ERROR_INVALID_VALUE;
  if (t.pid == static_cast<std::uint64_t>(::getpid())) return CUDA_ERROR_INVALID_CONTEXT;
  gpu* const g = on_card(t.card);
  if (g == nullptr) return CUDA_ERROR_INVALID_DEVICE;
  const std::size_t bytes = in_pages(t.bytes);
  CUmemGenericAllocationHandle pages = 0;
  if (const CUresult e = import_pages(*g, bytes, &pages); e != CUDA_SUCCESS) return e;
  CUmemAccessDesc access{};
  access.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  access.location.id = device->ordinal;
  access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
  // A card's address range holds only its own pages, whichever card is current.
  const auto range = g->sim->reserve(bytes);
  CUresult done = error_of(range.why());
  if (range) {
    g->ranges[*range] = bytes;
    *pdptr = *range;
  }
  if (done == CUDA_SUCCESS) done = cuMemMap(*pdptr, bytes, 0, pages, 0);
  if (done == CUDA_SUCCESS) done = cuMemSetAccess(*pdptr, bytes, &access, 1);
  static_cast<void>(cuMemRelease(pages));  // the mapping keeps the pages alive
  if (done == CUDA_SUCCESS) the_driver_state().opened[*pdptr] = bytes;
  return done;
}

CUresult CUDAAPI cuIpcCloseMemHandle(CUdeviceptr dptr) {
  SIMCUDA_ENTER("cuIpcCloseMemHandle");
  const auto found = the_driver_state().opened.find(dptr);
  if (found == the_driver_state().opened.end()) return CUDA_ERROR_INVALID_VALUE;
  const std::size_t bytes = found->second;
  if (const CUresult e = cuMemUnmap(dptr, bytes); e != CUDA_SUCCESS) return e;
  the_driver_state().opened.erase(found);
  return cuMemAddressFree(dptr, bytes);
}

// --- pages ----------------------------------------------------------------------------------------------------------

/// Writes a file that identifies the pages. A process that gets it by a socket or from its parent can import them.
CUresult CUDAAPI cuMemExportToShareableHandle(void* shareable, CUmemGenericAllocationHandle handle,
                                              CUmemAllocationHandleType type, unsigned long long flags) {
  SIMCUDA_ENTER("cuMemExportToShareableHandle");
  if (the_driver_state().shared == nullptr || type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR)
    return CUDA_ERROR_NOT_SUPPORTED;
  gpu* device = nullptr;
  for (const auto& g : the_driver_state().gpus) {
    if (g->exportable.count(handle) != 0) device = g.get();
  }
  if (shareable == nullptr || device == nullptr || flags != 0) return CUDA_ERROR_INVALID_VALUE;
  const ticket t = made_here(exported::pages, device->card, handle, device->run_bytes.at(handle));
  const int file = ::memfd_create("simulated pages of a card", MFD_CLOEXEC);
  if (file < 0) return CUDA_ERROR_OUT_OF_MEMORY;
  if (::pwrite(file, &t, sizeof t, 0) != static_cast<ssize_t>(sizeof t)) return ::close(file), CUDA_ERROR_OUT_OF_MEMORY;
  std::memcpy(shareable, &file, sizeof file);
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuMemImportFromShareableHandle(CUmemGenericAllocationHandle* handle, void* shareable,
                                                CUmemAllocationHandleType type) {
  SIMCUDA_ENTER("cuMemImportFromShareableHandle");
  if (the_driver_state().shared == nullptr || type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR)
    return CUDA_ERROR_NOT_SUPPORTED;
  ticket t;
  const auto file = static_cast<int>(reinterpret_cast<std::intptr_t>(shareable));
  if (::pread(file, &t, sizeof t, 0) != static_cast<ssize_t>(sizeof t)) return CUDA_ERROR_INVALID_VALUE;
  if (const CUresult e = may_open(t, exported::pages); e != CUDA_SUCCESS) return e;
  gpu* const g = on_card(t.card);
  return g == nullptr ? CUDA_ERROR_INVALID_DEVICE : import_pages(*g, t.bytes, handle);
}

// --- events ---------------------------------------------------------------------------------------------------------

CUresult CUDAAPI cuIpcGetEventHandle(CUipcEventHandle* handle, CUevent event) {
  SIMCUDA_ENTER("cuIpcGetEventHandle");
  if (the_driver_state().shared == nullptr) return CUDA_ERROR_NOT_SUPPORTED;
  if (event == nullptr || !event->alive) return CUDA_ERROR_INVALID_HANDLE;
  if (!event->interprocess) return CUDA_ERROR_INVALID_VALUE;
  const ticket t = made_here(exported::event, event->context->device->card, 0, 0);
  *handle = {};
  std::memcpy(handle->reserved, &t, sizeof t);
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuIpcOpenEventHandle(CUevent* event, CUipcEventHandle handle) {
  SIMCUDA_ENTER("cuIpcOpenEventHandle");
  ticket t;
  std::memcpy(&t, handle.reserved, sizeof t);
  if (const CUresult e = may_open(t, exported::event); e != CUDA_SUCCESS) return e;
  return cuEventCreate(event, CU_EVENT_DISABLE_TIMING);  // never recorded, so already done
}

}  // extern "C"
