// NVML's memory figures for the program where the whole process has a limit: the limit appears as the device's size.
//
// Programs reach NVML through the linker or by dlsym on a handle of their own; both lead here. gpumem's own queries are
// recognised by their return address and get the true figures.
#include <dlfcn.h>

#include <array>
#include <cstdlib>
#include <cstring>
#include <string>

#include "nvml.hpp"
#include "process_accounting.hpp"
#include "served.hpp"
#include "trusted_path.hpp"

namespace gpumem::preload {
namespace {

/// The same name that load_nvml opens.
std::string library_name() {
  std::string named = trusted_path("GPUMEM_NVML");
  return named.empty() ? "libnvidia-ml.so.1" : named;
}
constexpr int nvml_success = 0;
constexpr int nvml_library_not_found = 12;

/// The layout of nvmlMemory_v2_t.
struct nvml_memory_2 {
  unsigned int version;
  unsigned long long total;
  unsigned long long reserved;
  unsigned long long free;
  unsigned long long used;
};

template <typename Memory>
using memory_function = int (*)(nvml_device_t, Memory*);
std::atomic<memory_function<nvml_memory_t>> real_memory{nullptr};
std::atomic<memory_function<nvml_memory_2>> real_memory_2{nullptr};
std::atomic<int (*)(nvml_device_t, char*, unsigned int)> real_uuid{nullptr};

/// For functions that may run before the process is set up: a sanitizer looks its own functions up by dlsym.
#define GPUMEM_BEFORE_EVERYTHING __attribute__((no_sanitize("address", "thread", "undefined")))

/// The C library's dlsym.
using dlsym_function = void* (*)(void*, const char*);
GPUMEM_BEFORE_EVERYTHING dlsym_function find_dlsym() {
  void* found = dlvsym(RTLD_NEXT, "dlsym", "GLIBC_2.34");
  if (found == nullptr) found = dlvsym(RTLD_NEXT, "dlsym", "GLIBC_2.2.5");
  return reinterpret_cast<dlsym_function>(found);
}

/// Looks NVML's functions up in the program's handle, or, if it is null, by NVML's file name.
void find_real(void* handle, dlsym_function resolve) {
  if (real_uuid.load() != nullptr) return;
  if (handle == nullptr) handle = dlopen(library_name().c_str(), RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) return;
  real_memory = reinterpret_cast<memory_function<nvml_memory_t>>(resolve(handle, "nvmlDeviceGetMemoryInfo"));
  real_memory_2 = reinterpret_cast<memory_function<nvml_memory_2>>(resolve(handle, "nvmlDeviceGetMemoryInfo_v2"));
  real_uuid = reinterpret_cast<int (*)(nvml_device_t, char*, unsigned int)>(resolve(handle, "nvmlDeviceGetUUID"));
}

/// Limits the figures to the program's view of an open device; before opening, only the limit is known.
template <typename Memory>
void cap(nvml_device_t device, Memory* memory) {
  std::array<char, 96> uuid{};
  if (real_uuid.load() == nullptr || real_uuid.load()(device, uuid.data(), uuid.size()) != nvml_success) return;
  const served_context* open = nullptr;
  for_each_device([&](const served_context& served) {
    if (served.cuda_device->info().uuid == uuid.data()) open = &served;
  });
  if (open != nullptr) {
    if (!open->whole_process) return;
    memory->free = free_for_program(*open, memory->free).value_or(memory->free);
    memory->total = std::min<unsigned long long>(memory->total, open->limit_bytes);
  } else {
    const std::optional<std::uint64_t> limit = limit_before_opening(0, memory->total);
    if (!limit) return;
    memory->total = std::min<unsigned long long>(memory->total, *limit);
    memory->free = std::min(memory->free, memory->total);
  }
  memory->used = memory->total - std::min(memory->free, memory->total);
}

template <typename Memory>
int capped(const std::atomic<memory_function<Memory>>& real, nvml_device_t device, Memory* memory) {
  find_real(nullptr, find_dlsym());
  const memory_function<Memory> ask = real.load();
  if (ask == nullptr) return nvml_library_not_found;
  const int done = ask(device, memory);
  if (done == nvml_success && memory != nullptr && limits_process()) cap(device, memory);
  return done;
}

bool from_this_library(const void* caller) {
  static const int somewhere_in_it = 0;
  Dl_info own_info{};
  Dl_info caller_info{};
  return dladdr(&somewhere_in_it, &own_info) != 0 && dladdr(caller, &caller_info) != 0 &&
         own_info.dli_fbase == caller_info.dli_fbase;
}

}  // namespace
}  // namespace gpumem::preload

extern "C" {

int nvmlDeviceGetMemoryInfo(gpumem::nvml_device_t device, gpumem::nvml_memory_t* memory) {
  return gpumem::preload::capped(gpumem::preload::real_memory, device, memory);
}
int nvmlDeviceGetMemoryInfo_v2(gpumem::nvml_device_t device, gpumem::preload::nvml_memory_2* memory) {
  return gpumem::preload::capped(gpumem::preload::real_memory_2, device, memory);
}

// Called by watch_dlsym.S before the C library's dlsym: returns a replacement for the symbol, or null.
extern __attribute__((visibility("hidden"))) void* (*gpumem_preload_dlsym)(void*, const char*);
__attribute__((visibility("hidden"))) void* gpumem_preload_watch(void* handle, const char* name, const void* caller);

void* (*gpumem_preload_dlsym)(void*, const char*) = nullptr;

}  // extern "C"

namespace gpumem::preload {
namespace {

/// Returns the replacement for nvmlDeviceGetMemoryInfo + `ending`; null: use the library's function.
void* watched(void* handle, const char* ending, const void* caller) {
  if (from_this_library(caller) || !limits_process()) return nullptr;
  const bool second = std::strcmp(ending, "_v2") == 0;
  if (!second && *ending != '\0') return nullptr;
  const char* const name = second ? "nvmlDeviceGetMemoryInfo_v2" : "nvmlDeviceGetMemoryInfo";
  void* const real = gpumem_preload_dlsym(handle, name);
  if (real == nullptr || handle == RTLD_NEXT) return real;
  find_real(handle == RTLD_DEFAULT ? nullptr : handle, gpumem_preload_dlsym);
  return second ? reinterpret_cast<void*>(&nvmlDeviceGetMemoryInfo_v2)
                : reinterpret_cast<void*>(&nvmlDeviceGetMemoryInfo);
}

}  // namespace
}  // namespace gpumem::preload

extern "C" {

GPUMEM_BEFORE_EVERYTHING static void* driver_name_unknown_to_us(void* handle, const char* name, const void* caller);

GPUMEM_BEFORE_EVERYTHING void* gpumem_preload_watch(void* handle, const char* name, const void* caller) {
  if (__atomic_load_n(&gpumem_preload_dlsym, __ATOMIC_ACQUIRE) == nullptr) {
    __atomic_store_n(&gpumem_preload_dlsym, gpumem::preload::find_dlsym(), __ATOMIC_RELEASE);
  }
  // Compares by hand, because strncmp may be the symbol that is being looked up.
  if (name == nullptr) return nullptr;
  if (name[0] == 'c' && name[1] == 'u' && name[2] >= 'A' && name[2] <= 'Z') {
    return driver_name_unknown_to_us(handle, name, caller);
  }
  for (const char* expected = "nvmlDeviceGetMemoryInfo"; *expected != '\0'; ++expected, ++name) {
    if (*name != *expected) return nullptr;
  }
  return gpumem::preload::watched(handle, name, caller);
}

// Looks in the driver for functions of newer drivers that the shim does not export.
static void* driver_name_unknown_to_us(void* handle, const char* name, const void* caller) {
  if (handle == RTLD_NEXT || gpumem::preload::from_this_library(caller)) return nullptr;
  if (handle != RTLD_DEFAULT) {
    void* const shim = dlopen("libcuda.so.1", RTLD_LAZY | RTLD_NOLOAD);
    if (shim != nullptr) dlclose(shim);
    if (handle != shim) return nullptr;
  }
  void* const ours = gpumem_preload_dlsym(handle, name);
  return ours != nullptr ? ours : gpumem::preload::driver_symbol(name);
}

}  // extern "C"
