/// A host array that grows in place. It reserves addresses for its largest size at once and takes memory as it grows,
/// so elements never move, and an access needs no table of chunks.
///
/// Reserved addresses count only against RLIMIT_AS. If that refuses, the array reserves half as many, and so on. All
/// zero bytes must be a valid element. Not copyable; the owner locks.
#pragma once

#include <cstddef>
#include <memory>
#include <new>
#include <type_traits>

namespace gpumem {

/// Reserves addresses for `bytes`, or half of that, and so on down to `least`, and updates `bytes`. The range begins at
/// a multiple of 2 MiB. Throws std::bad_alloc.
void* reserve_host_addresses(std::size_t* bytes, std::size_t least);
/// Commits zeroed memory to a part of the range, in whole system pages. Throws std::bad_alloc.
void take_host_memory(void* begin, std::size_t bytes);
void release_host_addresses(void* p, std::size_t bytes) noexcept;

template <typename T>
class host_range {
 public:
  /// Reserves addresses for this many elements; takes no memory yet.
  explicit host_range(std::size_t most) {
    std::size_t bytes = most * sizeof(T);
    void* const begin = reserve_host_addresses(&bytes, step_bytes);
    held_ = {static_cast<T*>(begin), release{bytes}};
  }
  /// Requires an index below `size`.
  [[nodiscard]] T& operator[](std::size_t i) const noexcept { return held_[i]; }
  [[nodiscard]] std::size_t size() const noexcept { return size_; }
  [[nodiscard]] std::size_t bytes() const noexcept { return size_ * sizeof(T); }
  /// Grows by 64 KiB of zeroed elements. Throws std::bad_alloc and is then unchanged.
  [[gnu::cold, gnu::noinline]] void grow() {
    if (bytes() + step_bytes > held_.get_deleter().bytes) throw std::bad_alloc{};
    take_host_memory(held_.get() + size_, step_bytes);
    size_ += step_bytes / sizeof(T);
  }

 private:
  static constexpr std::size_t step_bytes = std::size_t{64} << 10;
  static_assert(step_bytes % sizeof(T) == 0 && std::is_trivially_destructible_v<T>);
  struct release {
    std::size_t bytes = 0;
    void operator()(T* p) const noexcept { release_host_addresses(p, bytes); }
  };
  std::unique_ptr<T[], release> held_;
  std::size_t size_ = 0;
};

}  // namespace gpumem
