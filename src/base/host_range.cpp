#include "host_range.hpp"

#include <sys/mman.h>

#include <cstdint>

namespace gpumem {
namespace {

constexpr std::size_t huge_page = std::size_t{2} << 20;

}  // namespace

void* reserve_host_addresses(std::size_t* bytes, std::size_t least) {
  for (; *bytes >= least; *bytes /= 2) {
    void* const range =
        ::mmap(nullptr, *bytes + huge_page, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (range == MAP_FAILED) continue;
    // What sticks out on both sides goes back.
    auto* const begin = static_cast<std::byte*>(range);
    const std::size_t lead = (huge_page - reinterpret_cast<std::uintptr_t>(begin) % huge_page) % huge_page;
    if (lead != 0) ::munmap(begin, lead);
    if (lead != huge_page) ::munmap(begin + lead + *bytes, huge_page - lead);
    ::madvise(begin + lead, *bytes, MADV_HUGEPAGE);  // a wish, for what has grown by then
    return begin + lead;
  }
  throw std::bad_alloc{};
}

void take_host_memory(void* begin, std::size_t bytes) {
  if (::mprotect(begin, bytes, PROT_READ | PROT_WRITE) != 0) throw std::bad_alloc{};
}

void release_host_addresses(void* p, std::size_t bytes) noexcept { ::munmap(p, bytes); }

}  // namespace gpumem
