// Redirects the names under which a program may open the driver to the shim. glibc recognises a loaded library by its
// SONAME and by the paths it was opened with, so `libcuda.so` (Numba, PAPI) would load the real driver. A path with a
// slash is left alone.
#include <dlfcn.h>

#include <cstring>

/// For functions that may run before the process is set up, for example from a sanitizer.
#define GPUMEM_BEFORE_EVERYTHING __attribute__((no_sanitize("address", "thread", "undefined")))

extern "C" {
// Called by watch_dlopen.S. `gpumem_preload_opens_apart` is for dlmopen namespaces, where nothing is preloaded.
extern __attribute__((visibility("hidden"))) void* (*gpumem_preload_dlopen)(const char*, int);
extern __attribute__((visibility("hidden"))) void* (*gpumem_preload_dlmopen)(Lmid_t, const char*, int);
__attribute__((visibility("hidden"))) const char* gpumem_preload_opens(const char* file, const void* caller);
__attribute__((visibility("hidden"))) const char* gpumem_preload_opens_apart(const char* file, const void* caller);

void* (*gpumem_preload_dlopen)(const char*, int) = nullptr;
void* (*gpumem_preload_dlmopen)(Lmid_t, const char*, int) = nullptr;
}

namespace {

GPUMEM_BEFORE_EVERYTHING void* find_next(const char* name) {
  void* const found = dlvsym(RTLD_NEXT, name, "GLIBC_2.34");
  return found != nullptr ? found
                          : dlvsym(RTLD_NEXT, name, std::strcmp(name, "dlopen") == 0 ? "GLIBC_2.2.5" : "GLIBC_2.3.4");
}

// strcmp may not be resolved yet.
GPUMEM_BEFORE_EVERYTHING bool same(const char* lhs, const char* rhs) {
  for (; *lhs != '\0' && *lhs == *rhs; ++lhs, ++rhs) {
  }
  return *lhs == *rhs;
}

GPUMEM_BEFORE_EVERYTHING bool names_driver(const char* file) {
  return file != nullptr && (same(file, "libcuda.so") || same(file, "libcuda.so.1"));
}

const char* this_file() {
  static const int somewhere_in_it = 0;
  Dl_info info{};
  return dladdr(&somewhere_in_it, &info) != 0 ? info.dli_fname : nullptr;
}

}  // namespace

extern "C" {

GPUMEM_BEFORE_EVERYTHING const char* gpumem_preload_opens(const char* file, const void* /*caller*/) {
  if (__atomic_load_n(&gpumem_preload_dlopen, __ATOMIC_ACQUIRE) == nullptr) {
    __atomic_store_n(&gpumem_preload_dlopen, reinterpret_cast<void* (*)(const char*, int)>(find_next("dlopen")),
                     __ATOMIC_RELEASE);
  }
  return names_driver(file) ? "libcuda.so.1" : file;
}

GPUMEM_BEFORE_EVERYTHING const char* gpumem_preload_opens_apart(const char* file, const void* /*caller*/) {
  if (__atomic_load_n(&gpumem_preload_dlmopen, __ATOMIC_ACQUIRE) == nullptr) {
    __atomic_store_n(&gpumem_preload_dlmopen,
                     reinterpret_cast<void* (*)(Lmid_t, const char*, int)>(find_next("dlmopen")), __ATOMIC_RELEASE);
  }
  const char* const self = names_driver(file) ? this_file() : nullptr;
  return self != nullptr ? self : file;
}

}  // extern "C"
