// The host's memory while a simulated program runs: what the run takes, and whether any is left.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <string>

namespace gpumem::cli {

class host_memory {
 public:
  /// `root` is in front of /proc and /sys, for tests.
  explicit host_memory(std::string root = "") : root_{std::move(root)} {}

  /// Reads what the host, or the control group of this process, has left: three small files.
  void look_at_host();
  /// Reads what `command` and its descendants have in memory: a file for each process of the machine.
  void look_at_run(pid_t command);
  /// Less than a fiftieth is left, or less than 256 MiB. False if it is not known.
  [[nodiscard]] bool is_short() const noexcept;
  /// The most that the program had in memory at a look; pages that several processes share count for each.
  [[nodiscard]] std::uint64_t peak_bytes() const noexcept { return peak_bytes_; }
  [[nodiscard]] std::uint64_t available_bytes() const noexcept { return available_bytes_; }
  [[nodiscard]] std::uint64_t total_bytes() const noexcept { return total_bytes_; }

 private:
  void read_control_group();

  std::string root_;
  std::uint64_t peak_bytes_ = 0;
  std::uint64_t available_bytes_ = 0;
  std::uint64_t total_bytes_ = 0;  ///< 0: not known
};

}  // namespace gpumem::cli
