#include "locks_of_shim.hpp"

#include <link.h>
#include <pthread.h>

#include <atomic>
#include <string_view>
#include <utility>

namespace gpumem::preload_test {
namespace {

std::atomic<std::uintptr_t> shim_begin{0};
std::atomic<std::uintptr_t> shim_end{0};
std::atomic<std::uint64_t> taken{0};

int find_shim(dl_phdr_info* of, std::size_t /*bytes*/, void* /*data*/) {
  if (std::string_view{of->dlpi_name}.find("libgpumem_preload.so") == std::string_view::npos) return 0;
  for (int i = 0; i < of->dlpi_phnum; ++i) {
    const auto& part = of->dlpi_phdr[i];
    if (part.p_type != PT_LOAD || (part.p_flags & PF_X) == 0) continue;
    shim_begin = of->dlpi_addr + part.p_vaddr;
    shim_end = shim_begin + part.p_memsz;
  }
  return 1;
}

}  // namespace

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
bool counts_locks() { return false; }
#else
bool counts_locks() { return true; }
#endif

std::uint64_t locks_of_shim() {
  if (shim_end == 0) dl_iterate_phdr(find_shim, nullptr);
  return taken;
}

}  // namespace gpumem::preload_test

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
// glibc's internal name, kept only for old programs. dlsym itself would resolve to the preload library's function.
#ifdef __x86_64__
__asm__(".symver lock_of_libc, __pthread_mutex_lock@GLIBC_2.2.5");
#else
__asm__(".symver lock_of_libc, __pthread_mutex_lock@GLIBC_2.17");
#endif

extern "C" {
int lock_of_libc(pthread_mutex_t* of) noexcept;

int pthread_mutex_lock(pthread_mutex_t* of) noexcept {
  using namespace gpumem::preload_test;
  const auto caller = reinterpret_cast<std::uintptr_t>(__builtin_return_address(0));
  if (caller >= shim_begin.load() && caller < shim_end.load()) taken.fetch_add(1);
  return lock_of_libc(of);
}
}
#endif
