// Real host memory behind the simulated device's addresses, so that programs can read and write their blocks.
//
// Reserves one range of addresses, where the kernel chooses. Segments in it become readable and writable. Page runs are
// parts of one memory file; they can be mapped anywhere in the range, several times, and keep their contents. Untouched
// memory costs nothing. Other addresses fault, which detects a use after free. sim_device holds the lock.
#pragma once

#include <cstdint>

#include "gpumem/device.hpp"
#include "gpumem/status.hpp"

namespace gpumem {

class host_backing {
 public:
  /// Reserves `bytes`, a multiple of 2 MiB, at a multiple of `alignment`.
  static result<host_backing> reserve(std::uint64_t bytes, std::uint64_t alignment);
  host_backing() = default;
  host_backing(host_backing&& source) noexcept;
  host_backing& operator=(host_backing&& source) noexcept;
  host_backing(const host_backing&) = delete;
  host_backing& operator=(const host_backing&) = delete;
  ~host_backing();

  [[nodiscard]] explicit operator bool() const noexcept { return bytes_ != 0; }
  [[nodiscard]] address begin() const noexcept { return begin_; }

  /// Makes the range readable, writable and zero.
  status open(address begin, std::uint64_t bytes);
  /// Discards the contents; any access then faults.
  status close(address begin, std::uint64_t bytes);
  /// Maps the page run at `offset` of the file, which grows as needed.
  status map(address begin, std::uint64_t bytes, std::uint64_t offset);
  /// Discards the contents of the run.
  void discard(std::uint64_t offset, std::uint64_t bytes) noexcept;

 private:
  address begin_ = 0;
  std::uint64_t bytes_ = 0;
  void* mapping_ = nullptr;
  std::uint64_t mapping_bytes_ = 0;
  int file_ = -1;
  std::uint64_t file_bytes_ = 0;
};

}  // namespace gpumem
