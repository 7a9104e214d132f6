// Real host memory behind the simulated device's addresses, so that programs can run on them.
//
// One range of addresses is reserved where the kernel likes it; segments in it become readable and writable, page runs
// are parts of one memory file that can be mapped anywhere in it, several times, and keep their contents. Memory costs
// the host only what is touched. Addresses without a segment fault: a use after free is found where it happens.
// No lock: sim_device's.
#pragma once

#include <cstdint>

#include "gpumem/device.hpp"
#include "gpumem/status.hpp"

namespace gpumem {

class host_backing {
 public:
  /// A range of `bytes`, a multiple of 2 MiB, which begins at a multiple of `alignment`.
  static result<host_backing> reserve(std::uint64_t bytes, std::uint64_t alignment);
  host_backing() = default;
  host_backing(host_backing&& other) noexcept;
  host_backing& operator=(host_backing&& other) noexcept;
  host_backing(const host_backing&) = delete;
  host_backing& operator=(const host_backing&) = delete;
  ~host_backing();

  [[nodiscard]] explicit operator bool() const noexcept { return bytes_ != 0; }
  [[nodiscard]] address begin() const noexcept { return begin_; }

  /// Zeros that can be read and written.
  status open(address at, std::uint64_t bytes);
  /// Nothing: any access faults, and what was there is lost.
  status close(address at, std::uint64_t bytes);
  /// The page run that begins at `offset` of the file, which grows as needed.
  status map(address at, std::uint64_t bytes, std::uint64_t offset);
  /// What the run held is lost.
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
