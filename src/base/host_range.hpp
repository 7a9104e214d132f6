/// An array in host memory that grows where it stands: addresses for the most that it may hold are reserved at once,
/// and memory is taken as it grows. So an element never moves, and finding one costs no table of pieces.
///
/// Reserved addresses count towards no limit but that of addresses (RLIMIT_AS): where that refuses, half as many are
/// asked for, and so on. Elements are of a type for which all bytes zero is a value. Not copied; the owner locks.
#pragma once

#include <cstddef>
#include <memory>
#include <new>
#include <type_traits>

namespace gpumem {

/// Addresses for `bytes`, or for half of it, or a half of that, down to `least`; `bytes` then says for how many. They
/// begin at a multiple of 2 MiB. Throws std::bad_alloc.
void* reserve_host_addresses(std::size_t* bytes, std::size_t least);
/// Zeroed memory behind a part of them, whole pages of the system. Throws std::bad_alloc.
void take_host_memory(void* begin, std::size_t bytes);
void release_host_addresses(void* p, std::size_t bytes) noexcept;

template <typename T>
class host_range {
 public:
  /// Of at most so many elements; nothing is taken yet.
  explicit host_range(std::size_t most) {
    std::size_t bytes = most * sizeof(T);
    void* const begin = reserve_host_addresses(&bytes, step_bytes);
    held_ = {static_cast<T*>(begin), release{bytes}};
  }
  /// Requires that it is less than `size`.
  [[nodiscard]] T& operator[](std::size_t i) const noexcept { return held_[i]; }
  [[nodiscard]] std::size_t size() const noexcept { return size_; }
  [[nodiscard]] std::size_t bytes() const noexcept { return size_ * sizeof(T); }
  /// 64 KiB more of elements, zeroed; throws std::bad_alloc, and is as it was then.
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
