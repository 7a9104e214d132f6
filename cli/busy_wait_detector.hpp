// Detects a simulated program that loops until a kernel writes a value into host memory. Simulated kernels write
// nothing, so the program uses the processor, makes no CUDA call and no system call, and never ends.
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <optional>
#include <vector>

#include "simulated_run.hpp"

namespace gpumem::cli {

/// Counters of a process from /proc. A loop that only reads memory advances `cpu_ticks` and no other counter.
struct host_activity {
  std::uint64_t cpu_ticks = 0;
  std::uint64_t page_faults = 0;
  std::uint64_t reads_and_writes = 0;
  std::uint64_t sleeps = 0;  ///< of all threads
};

/// Empty if the process has ended or cannot be read.
std::optional<host_activity> activity_of(std::uint64_t pid);

class busy_wait_detector {
 public:
  using clock = std::chrono::steady_clock;

  /// Reads the counters of every live process. Returns the seconds for which all of them have done nothing but use
  /// the processor. 0 if any did something else, or if no process has launched a kernel.
  double look(const std::vector<simulated_process>& processes, clock::time_point moment = clock::now());

 private:
  struct seen {
    std::uint64_t record = 0;
    host_activity host;
  };
  /// Whether the process used the processor for these seconds and did nothing else.
  static bool only_spun(const seen& before, const seen& after, double seconds);

  clock::time_point since_ = clock::now();
  std::map<std::uint64_t, seen> before_;
};

}  // namespace gpumem::cli
