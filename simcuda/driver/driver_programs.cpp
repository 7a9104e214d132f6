// The simulated driver: functions that programs need and gpumem does not: attributes of pointers, and libraries of
// kernels (which never run).
#include <cstring>
#include <iterator>
#include <string>

#include "driver_state.hpp"
#include "run_recorder.hpp"
#include "shared_cards_lock.hpp"
#include "values.hpp"

using namespace gpumem::simcuda;  // NOLINT: the driver's functions are global

struct CUkern_st {
  std::string name;
};

struct CUlib_st {
  std::map<std::string, CUkern_st, std::less<>> kernels;
};

namespace {

/// By handle. All functions of a module share one handle, which has the name of the last.
std::map<const void*, std::string>& names_of_kernels() {
  static auto* const only = new std::map<const void*, std::string>;
  return *only;
}

struct what_is_there {
  const gpu* device = nullptr;  ///< null: not allocated by the driver
  CUdeviceptr begin = 0;
  std::size_t bytes = 0;
  bool pinned = false;
  bool managed = false;
  bool mapped = false;
};

what_is_there find(CUdeviceptr address) {
  for (const auto& g : the_driver_state().gpus) {
    for (const auto* const blocks : {&g->allocations, &g->pinned, &g->registered}) {
      auto found = blocks->upper_bound(address);
      if (found == blocks->begin()) continue;
      --found;
      if (address - found->first >= found->second) continue;
      const bool pinned = blocks != &g->allocations;
      return {g.get(), found->first, found->second, pinned, !pinned && g->managed.count(found->first) != 0};
    }
    const auto next = g->mapped.upper_bound(address);
    if (next == g->mapped.begin()) continue;
    const auto& [begin, pages] = *std::prev(next);
    if (address - begin >= pages.bytes) continue;
    return {.device = g.get(), .begin = begin, .bytes = pages.bytes, .pinned = pages.on_host, .mapped = true};
  }
  return {};
}

template <typename Value>
CUresult give(void* data, Value value) {
  std::memcpy(data, &value, sizeof value);
  return CUDA_SUCCESS;
}

/// Writes an attribute of known memory; zeros for other memory.
CUresult attribute(void* data, CUpointer_attribute attrib, CUdeviceptr address, const what_is_there& found) {
  const bool known = found.device != nullptr;
  switch (attrib) {
    case CU_POINTER_ATTRIBUTE_CONTEXT:
      return give(data, known ? found.device->primary : CUcontext{nullptr});
    case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
      if (!known) return give(data, 0U);
      return give(data, static_cast<unsigned int>(found.pinned ? CU_MEMORYTYPE_HOST : CU_MEMORYTYPE_DEVICE));
    case CU_POINTER_ATTRIBUTE_DEVICE_POINTER:
      return give(data, known ? address : CUdeviceptr{0});
    case CU_POINTER_ATTRIBUTE_HOST_POINTER:
      return give(data, found.pinned || found.managed ? address : CUdeviceptr{0});
    case CU_POINTER_ATTRIBUTE_IS_MANAGED:
      return give(data, found.managed ? 1U : 0U);
    case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL:
      return give(data, known ? found.device->ordinal : -2);
    case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR:
      return give(data, found.begin);
    case CU_POINTER_ATTRIBUTE_RANGE_SIZE:
      return give(data, found.bytes);
    case CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE:
      return give(data,
                  known && !found.pinned && !found.managed && !found.mapped && !found.device->pool->owns(found.begin));
    default:
      return CUDA_ERROR_NOT_SUPPORTED;
  }
}

}  // namespace

namespace gpumem::simcuda {

std::string kernel_name(CUfunction function) {
  const auto found = names_of_kernels().find(function);
  return found != names_of_kernels().end() ? found->second : "of a library";
}

}  // namespace gpumem::simcuda

extern "C" {

// --- pointers -------------------------------------------------------------------------------------------------------

CUresult CUDAAPI cuPointerGetAttribute(void* data, CUpointer_attribute attrib, CUdeviceptr ptr) {
  SIMCUDA_ENTER("cuPointerGetAttribute");
  const what_is_there found = find(ptr);
  return found.device == nullptr ? CUDA_ERROR_INVALID_VALUE : attribute(data, attrib, ptr, found);
}

CUresult CUDAAPI cuPointerGetAttributes(unsigned int count, CUpointer_attribute* attributes, void** data,
                                        CUdeviceptr ptr) {
  SIMCUDA_ENTER("cuPointerGetAttributes");
  const what_is_there found = find(ptr);
  for (unsigned int i = 0; i < count; ++i) {
    if (const CUresult e = attribute(data[i], attributes[i], ptr, found); e != CUDA_SUCCESS) return e;
  }
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuMemGetAddressRange_v2(CUdeviceptr* base, std::size_t* bytes, CUdeviceptr dptr) {
  SIMCUDA_ENTER("cuMemGetAddressRange");
  const what_is_there found = find(dptr);
  if (found.device == nullptr || found.pinned) return CUDA_ERROR_NOT_FOUND;
  if (base != nullptr) *base = found.begin;
  if (bytes != nullptr) *bytes = found.bytes;
  return CUDA_SUCCESS;
}

// --- streams' properties -------------------------------------------------------------------------------------------

CUresult CUDAAPI cuStreamGetFlags(CUstream handle, unsigned int* flags) {
  SIMCUDA_ENTER("cuStreamGetFlags");
  SIMCUDA_FIND_STREAM(s, device, handle);
  if (const CUresult e = refuse_while_capturing(*s); e != CUDA_SUCCESS) return e;
  *flags = s->flags;
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuStreamGetPriority(CUstream handle, int* priority) {
  SIMCUDA_ENTER("cuStreamGetPriority");
  SIMCUDA_FIND_STREAM(s, device, handle);
  *priority = s->priority;
  return CUDA_SUCCESS;
}

// --- libraries of kernels ------------------------------------------------------------------------------------------

/// The code is never read, and every kernel name is found.
CUresult CUDAAPI cuLibraryLoadData(CUlibrary* library, const void* code, CUjit_option*, void**, unsigned int,
                                   CUlibraryOption*, void**, unsigned int) {
  SIMCUDA_ENTER("cuLibraryLoadData");
  if (code == nullptr) return CUDA_ERROR_INVALID_VALUE;
  // As with lazy loading: without a context, the first kernel lookup charges the code.
  gpu* device = nullptr;
  const std::uint64_t bytes = the_driver_state().config.library_bytes;
  if (bytes != 0 && current(&device) == CUDA_SUCCESS) {
    const shared_cards_lock turn{*device};
    if (const auto taken = device->sim->alloc(bytes); !taken) return error_of(taken.why());
    note_charge(*device, charge::module, bytes);
  }
  *library = new CUlib_st;  // never freed: kernels may be launched while the process ends
  return CUDA_SUCCESS;
}

// The program's code does not run here, so a function's handle is its module.
CUresult CUDAAPI cuModuleLoadData(CUmodule* module, const void* code) {
  SIMCUDA_ENTER("cuModuleLoadData");
  SIMCUDA_FIND_CURRENT(device);
  if (code == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (const std::uint64_t bytes = the_driver_state().config.module_bytes; bytes != 0) {
    const shared_cards_lock turn{*device};
    if (const auto taken = device->sim->alloc(bytes); !taken) return error_of(taken.why());
    note_charge(*device, charge::module, bytes);
  }
  *module = reinterpret_cast<CUmodule>(new CUlib_st);  // never freed, as above
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuModuleGetFunction(CUfunction* function, CUmodule module, const char* name) {
  SIMCUDA_ENTER("cuModuleGetFunction");
  if (module == nullptr || name == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *function = reinterpret_cast<CUfunction>(module);
  names_of_kernels()[module] = name;
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuLibraryGetKernel(CUkernel* kernel, CUlibrary library, const char* name) {
  SIMCUDA_ENTER("cuLibraryGetKernel");
  if (library == nullptr || name == nullptr) return CUDA_ERROR_INVALID_VALUE;
  CUkern_st& found = library->kernels[name];
  found.name = name;
  names_of_kernels()[&found] = name;
  *kernel = &found;
  return CUDA_SUCCESS;
}

}  // extern "C"
