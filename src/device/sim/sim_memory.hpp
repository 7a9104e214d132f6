// The simulated device's memory: addresses, plain segments, pinned host memory, ranges, page runs, mappings.
//
// Only counts memory, unless host memory is requested (host_backing.hpp). Uses the lowest addresses that fit, so runs
// repeat them, and reuses freed address space. A gap of at least one granule follows each plain or pinned segment, so
// that segments never touch. sim_device has the lock and the clock. Invariant: used = plain segments + page runs of
// the device with a handle or a mapping.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <unordered_map>

#include "gpumem/sim_device.hpp"
#include "host_backing.hpp"
#include "range_set.hpp"

namespace gpumem {

class sim_memory {
 public:
  /// The driver's maximum of mappings per device, beyond which set_access fails (seen on an H100, driver 580).
  static constexpr std::uint64_t mapping_ceiling = 520'000;

  explicit sim_memory(const sim_config& config);

  result<address> alloc(std::uint64_t bytes);
  /// Returns the size of the freed segment.
  result<std::uint64_t> free(address segment);
  result<address> alloc_host(std::uint64_t bytes);
  result<std::uint64_t> free_host(address segment);

  result<address> reserve(std::uint64_t bytes);
  status release_range(address range, std::uint64_t bytes);
  /// `on_host`: pages of the host's memory, which take none of the device's.
  result<page_run> create(std::uint64_t bytes, bool on_host = false);
  /// Returns the size of the run, even if a mapping still refers to it.
  result<std::uint64_t> destroy(page_run pages);
  status map(address begin, std::uint64_t bytes, page_run pages);
  /// Another place where the run is mapped, the latest one if it is mapped there still; 0 if there is none.
  [[nodiscard]] address mapped_elsewhere(page_run pages) const;
  status set_access(address begin, std::uint64_t bytes);
  status unmap(address begin, std::uint64_t bytes);

  /// True when each byte lies in a plain or pinned segment or in an accessible mapping.
  [[nodiscard]] bool accessible(address begin, address end) const noexcept { return accessible_.covers(begin, end); }
  [[nodiscard]] std::uint64_t free_bytes() const noexcept;
  [[nodiscard]] std::uint64_t capacity_bytes() const noexcept { return capacity_bytes_; }
  [[nodiscard]] std::uint64_t used_bytes() const noexcept { return used_bytes_; }
  [[nodiscard]] std::uint64_t peak_used_bytes() const noexcept { return peak_used_bytes_; }
  [[nodiscard]] std::uint64_t live_mappings() const noexcept { return live_mappings_; }
  [[nodiscard]] std::uint64_t mapped_pages() const noexcept { return mapped_pages_; }
  [[nodiscard]] std::uint64_t remapped_pages() const noexcept { return remapped_pages_; }
  void set_foreign_bytes(std::uint64_t bytes) noexcept { foreign_bytes_ = bytes; }

 private:
  struct run {
    std::uint64_t bytes = 0;
    std::uint64_t mappings = 0;
    bool destroyed = false;
    bool was_mapped = false;
    address latest = 0;  ///< where it was mapped last
    bool on_host = false;
    std::uint64_t offset = 0;  ///< in the host's memory file
  };
  struct mapping {
    address end = 0;
    std::uint64_t run_id = 0;
    bool accessible = false;
  };
  using segment_map = std::unordered_map<address, std::uint64_t>;  // begin -> bytes
  using mapping_map = std::map<address, mapping>;
  struct mapping_span {
    mapping_map::iterator first;
    mapping_map::iterator last;
  };

  [[nodiscard]] std::uint64_t host_range_bytes(const sim_config& config) const;
  status open_host(address begin, std::uint64_t bytes);
  void close_host(address begin, std::uint64_t bytes);
  result<address> take_addresses(device_call call, std::uint64_t bytes, std::uint64_t gap_bytes);
  void give_addresses(address begin, std::uint64_t bytes, std::uint64_t gap_bytes);
  /// Adds a segment with addresses, and the host's memory if there is some; takes no physical memory.
  result<address> add_segment(device_call call, std::uint64_t bytes, segment_map& segments);
  /// Returns its size; empty if no segment begins there.
  std::optional<std::uint64_t> remove_segment(address segment, segment_map& segments);
  /// Takes `bytes` of physical memory, if that many are free.
  status take_physical(device_call call, std::uint64_t bytes);
  void give_run_back_if_unheld(std::uint64_t run_id);
  /// The mappings that cover `[begin, begin + bytes)` exactly, or an error.
  result<mapping_span> mappings_in(device_call call, address begin, std::uint64_t bytes);
  [[nodiscard]] status check_pages(device_call call, std::uint64_t bytes) const;

  const std::uint64_t capacity_bytes_;
  const std::uint64_t granularity_bytes_;
  const std::uint64_t page_bytes_;
  const std::uint64_t address_step_;  ///< every address is a multiple of it
  std::uint64_t foreign_bytes_;
  std::uint64_t used_bytes_ = 0;
  std::uint64_t peak_used_bytes_ = 0;
  std::uint64_t live_mappings_ = 0;
  std::uint64_t mapped_pages_ = 0;
  std::uint64_t remapped_pages_ = 0;
  std::uint64_t last_run_id_ = 0;

  host_backing host_;  ///< empty if memory is only counted
  range_set free_file_;
  range_set free_addresses_;
  range_set accessible_;
  segment_map plain_;
  segment_map pinned_;
  std::map<address, std::uint64_t> reservations_;
  std::unordered_map<std::uint64_t, run> runs_;
  mapping_map mappings_;
};

}  // namespace gpumem
