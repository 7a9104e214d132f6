#include "host_range.hpp"

#include <sys/mman.h>

#include "host_array.hpp"

namespace gpumem {

void* reserve_host_addresses(std::size_t* bytes, std::size_t least) {
  for (; *bytes >= least; *bytes /= 2) {
    if (void* const p = map_on_huge_pages(*bytes, PROT_NONE); p != nullptr) return p;
  }
  throw std::bad_alloc{};
}

void take_host_memory(void* begin, std::size_t bytes) {
  if (::mprotect(begin, bytes, PROT_READ | PROT_WRITE) != 0) throw std::bad_alloc{};
}

void release_host_addresses(void* p, std::size_t bytes) noexcept { ::munmap(p, bytes); }

}  // namespace gpumem
