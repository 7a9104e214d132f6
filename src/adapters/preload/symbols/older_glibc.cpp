// Two functions of newer versions of glibc that the compiler's own libraries call, so that programs linked with those
// libraries run with glibc 2.34.
//
// In gpumem's libraries they are hidden. As a separate library (scripts/gpu_check's pack) they serve copies of
// libstdc++ and libgcc_s that require them from a newer glibc. Any thread.
#include <dlfcn.h>
#include <link.h>
#include <sys/random.h>

#include <cerrno>
#include <cstdint>
#include <cstdlib>

#ifdef GPUMEM_OLDER_GLIBC_LIBRARY
#define GPUMEM_OLDER_GLIBC __attribute__((visibility("default")))
#else
#define GPUMEM_OLDER_GLIBC __attribute__((visibility("hidden")))
#endif

extern "C" {

/// As in glibc 2.36; libstdc++'s std::random_device calls it. Never fails: without random numbers from the kernel it
/// ends the program, as glibc does.
GPUMEM_OLDER_GLIBC std::uint32_t arc4random(void) noexcept;
std::uint32_t arc4random(void) noexcept {
  std::uint32_t number = 0;
  for (;;) {
    const ssize_t got = getrandom(&number, sizeof number, 0);
    if (got == static_cast<ssize_t>(sizeof number)) return number;
    if (got < 0 && errno != EINTR) std::abort();
  }
}

#ifdef DLFO_EH_SEGMENT_TYPE
/// As in glibc 2.35, except that it leaves `dlfo_link_map` unset, which its only caller, libgcc's unwinder, does not
/// read. Asks the loader for every object, as the unwinder did before this function existed.
GPUMEM_OLDER_GLIBC int _dl_find_object(void* address, struct dl_find_object* result) noexcept;
int _dl_find_object(void* address, struct dl_find_object* result) noexcept {
  struct search {
    std::uintptr_t address;
    struct dl_find_object* result;
  } wanted{reinterpret_cast<std::uintptr_t>(address), result};
  const auto covers = [](struct dl_phdr_info* object, std::size_t /*size*/, void* data) {
    const search& s = *static_cast<search*>(data);
    std::uintptr_t begin = UINTPTR_MAX;
    std::uintptr_t end = 0;
    std::uintptr_t unwinding = 0;
    bool inside = false;
    for (int i = 0; i < object->dlpi_phnum; ++i) {
      const ElfW(Phdr)& part = object->dlpi_phdr[i];
      const std::uintptr_t part_begin = object->dlpi_addr + part.p_vaddr;
      if (part.p_type == DLFO_EH_SEGMENT_TYPE) unwinding = part_begin;
      if (part.p_type != PT_LOAD) continue;
      if (part_begin < begin) begin = part_begin;
      if (part_begin + part.p_memsz > end) end = part_begin + part.p_memsz;
      if (s.address >= part_begin && s.address < part_begin + part.p_memsz) inside = true;
    }
    if (!inside || unwinding == 0) return 0;
    *s.result = {};
    s.result->dlfo_map_start = reinterpret_cast<void*>(begin);
    s.result->dlfo_map_end = reinterpret_cast<void*>(end);
    s.result->dlfo_eh_frame = reinterpret_cast<void*>(unwinding);
    return 1;
  };
  return dl_iterate_phdr(covers, &wanted) == 1 ? 0 : -1;
}
#endif

}  // extern "C"
