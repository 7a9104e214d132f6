#include "host_array.hpp"

#include <sys/mman.h>

#include <cstdlib>
#include <cstring>

namespace gpumem {
namespace {

constexpr std::size_t huge_page = std::size_t{2} << 20;
constexpr std::size_t least_mapped = std::size_t{128} << 10;  // smaller arrays come from the heap
constexpr std::size_t line = 64;

}  // namespace

void* map_on_huge_pages(std::size_t bytes, int protection) noexcept {
  // Reserve one extra huge page, and unmap the unaligned ends.
  void* const range =
      ::mmap(nullptr, bytes + huge_page, protection, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (range == MAP_FAILED) return nullptr;
  auto* const begin = static_cast<std::byte*>(range);
  const std::size_t lead = (huge_page - reinterpret_cast<std::size_t>(begin) % huge_page) % huge_page;
  if (lead != 0) ::munmap(begin, lead);
  if (lead != huge_page) ::munmap(begin + lead + bytes, huge_page - lead);
  ::madvise(begin + lead, bytes, MADV_HUGEPAGE);  // optional: small pages work as well
  return begin + lead;
}

void* take_host_pages(std::size_t bytes) {
  if (bytes < least_mapped) {
    void* const p = std::aligned_alloc(line, (bytes + line - 1) / line * line);
    if (p == nullptr) throw std::bad_alloc{};
    return std::memset(p, 0, bytes);
  }
  if (bytes < huge_page) {
    void* const p = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (p == MAP_FAILED) throw std::bad_alloc{};
    return p;
  }
  void* const p = map_on_huge_pages((bytes + huge_page - 1) / huge_page * huge_page, PROT_READ | PROT_WRITE);
  if (p == nullptr) throw std::bad_alloc{};
  return p;
}

void give_host_pages(void* p, std::size_t bytes) noexcept {
  if (bytes < least_mapped) {
    std::free(p);
  } else {
    ::munmap(p, bytes < huge_page ? bytes : (bytes + huge_page - 1) / huge_page * huge_page);
  }
}

}  // namespace gpumem
