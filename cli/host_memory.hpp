// Watches the host's memory while a simulated program runs: the run's use, and the memory still available.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <string>

namespace gpumem::cli {

class host_memory {
 public:
  /// `root` is a prefix of /proc and /sys, for tests.
  explicit host_memory(std::string root = "") : root_{std::move(root)} {}

  /// Reads the memory available on the host, and in the control group of this process: three small files.
  void look_at_host();
  /// Sums the resident memory of `command` and its descendants. Reads one file for each process of the machine.
  void look_at_run(pid_t command);
  /// True if less than a fiftieth of the memory or less than 256 MiB is available. False if unknown.
  [[nodiscard]] bool is_short() const noexcept;
  /// The largest sum that `look_at_run` found. A page shared by several processes counts once for each.
  [[nodiscard]] std::uint64_t peak_bytes() const noexcept { return peak_bytes_; }
  [[nodiscard]] std::uint64_t available_bytes() const noexcept { return available_bytes_; }
  [[nodiscard]] std::uint64_t total_bytes() const noexcept { return total_bytes_; }

 private:
  void read_control_group();

  std::string root_;
  std::uint64_t peak_bytes_ = 0;
  std::uint64_t available_bytes_ = 0;
  std::uint64_t total_bytes_ = 0;  ///< 0: unknown
};

}  // namespace gpumem::cli
