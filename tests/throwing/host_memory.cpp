#include "host_memory.hpp"

#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <new>
#include <utility>

namespace gpumem::host_memory {
namespace {

constinit thread_local int watching = 0;
constinit thread_local std::uint64_t left = 0;  // until the failure; 0: none planned
constinit thread_local bool has_failed = false;

bool fails_now() noexcept {
  if (watching == 0 || left == 0 || --left != 0) return false;
  has_failed = true;
  return true;
}

void* allocate(std::size_t alignment, std::size_t bytes) noexcept {
  if (alignment <= alignof(std::max_align_t)) return std::malloc(bytes);
  void* p = nullptr;
  return ::posix_memalign(&p, alignment, bytes) == 0 ? p : nullptr;
}

void* take(std::size_t bytes, std::size_t alignment) {
  void* const p = fails_now() ? nullptr : allocate(alignment, bytes);
  if (p == nullptr) throw std::bad_alloc{};
  return p;
}

}  // namespace

void fail_nth(std::uint64_t n) noexcept {
  left = n;
  has_failed = false;
}
bool failed() noexcept { return has_failed; }

watched::watched() noexcept { ++watching; }
watched::~watched() { --watching; }
unwatched::unwatched() noexcept : before_{std::exchange(watching, 0)} {}
unwatched::~unwatched() { watching = before_; }

}  // namespace gpumem::host_memory

void* operator new(std::size_t bytes) { return gpumem::host_memory::take(bytes, 1); }
void* operator new(std::size_t bytes, std::align_val_t alignment) {
  return gpumem::host_memory::take(bytes, static_cast<std::size_t>(alignment));
}
// std::stable_sort allocates this way; a sanitizer's version uses memory that free() does not accept.
void* operator new(std::size_t bytes, const std::nothrow_t&) noexcept {
  return gpumem::host_memory::fails_now() ? nullptr : gpumem::host_memory::allocate(1, bytes);
}
void operator delete(void* p) noexcept { std::free(p); }
void operator delete(void* p, std::size_t) noexcept { std::free(p); }
void operator delete(void* p, std::align_val_t) noexcept { std::free(p); }
void operator delete(void* p, std::size_t, std::align_val_t) noexcept { std::free(p); }

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define GPUMEM_TEST_SANITIZED 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define GPUMEM_TEST_SANITIZED 1
#endif
#endif

#ifndef GPUMEM_TEST_SANITIZED
extern "C" {

void* aligned_alloc(std::size_t alignment, std::size_t bytes) noexcept {
  return gpumem::host_memory::fails_now() ? nullptr : gpumem::host_memory::allocate(alignment, bytes);
}

void* mmap(void* at, std::size_t bytes, int protection, int flags, int file, off_t offset) noexcept {
  if (gpumem::host_memory::fails_now()) {
    errno = ENOMEM;
    return MAP_FAILED;
  }
  return reinterpret_cast<void*>(::syscall(SYS_mmap, at, bytes, protection, flags, file, offset));
}

int mprotect(void* at, std::size_t bytes, int protection) noexcept {
  if (gpumem::host_memory::fails_now()) {
    errno = ENOMEM;
    return -1;
  }
  return static_cast<int>(::syscall(SYS_mprotect, at, bytes, protection));
}

}  // extern "C"
#endif
