/// A fixed array in host memory, zeroed: on huge pages where it is large, since what is looked up at random in many
/// megabytes otherwise misses the processor's table of pages at every look.
///
/// Elements are of a type for which all bytes zero is the initial value: none is constructed, so that a page that is
/// never touched is never taken from the system. Not copied; the owner locks.
#pragma once

#include <cstddef>
#include <memory>
#include <new>
#include <type_traits>

namespace gpumem {

/// A mapping of zeroed memory at a multiple of 2 MiB, on huge pages where the system has them; `bytes` is a multiple of
/// its pages, `protection` as mmap(2) has it. Null where there are no addresses, or no memory is promised. `munmap` it.
void* map_on_huge_pages(std::size_t bytes, int protection) noexcept;

/// Zeroed memory at a multiple of 64; throws std::bad_alloc. Touched pages only are taken from the system.
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
