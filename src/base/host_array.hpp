/// A fixed, zeroed array in host memory. Large arrays use huge pages, because random lookups in many megabytes of small
/// pages miss the TLB each time.
///
/// The element type's initial value must be all zero bytes: elements are not constructed, so that untouched pages are
/// never taken from the system. Not copyable; the owner locks.
#pragma once

#include <cstddef>
#include <memory>
#include <new>
#include <type_traits>

namespace gpumem {

/// Maps zeroed memory at a multiple of 2 MiB, on huge pages if the system has them. `bytes` is a multiple of the page
/// size, `protection` is that of mmap(2). Null if the system refuses. The caller unmaps it with munmap(2).
void* map_on_huge_pages(std::size_t bytes, int protection) noexcept;

/// Zeroed memory at a multiple of 64; throws std::bad_alloc. Only touched pages are taken from the system.
void* take_host_pages(std::size_t bytes);
void give_host_pages(void* p, std::size_t bytes) noexcept;

template <typename T>
class host_array {
 public:
  host_array() = default;
  explicit host_array(std::size_t count) : held_{static_cast<T*>(take_host_pages(count * sizeof(T))), {count}} {}
  [[nodiscard]] T& operator[](std::size_t i) const noexcept { return held_[i]; }
  [[nodiscard]] T* data() const noexcept { return held_.get(); }
  [[nodiscard]] std::size_t size() const noexcept { return held_ ? held_.get_deleter().count : 0; }

 private:
  static_assert(std::is_trivially_destructible_v<T>);
  struct give_back {
    std::size_t count = 0;
    void operator()(T* p) const noexcept { give_host_pages(p, count * sizeof(T)); }
  };
  std::unique_ptr<T[], give_back> held_;
};

}  // namespace gpumem
