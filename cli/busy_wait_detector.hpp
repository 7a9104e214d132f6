// A simulated program that waits in a loop for a value which a kernel would write into the host's memory: it uses the
// processor, calls neither the card nor the kernel of the system, and never ends.
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <optional>
#include <vector>

#include "simulated_run.hpp"

namespace gpumem::cli {

/// What a process has done so far, by /proc. All but `cpu_ticks` stands still in a loop that only looks at memory.
struct host_activity {
  std::uint64_t cpu_ticks = 0;
  std::uint64_t page_faults = 0;
  std::uint64_t reads_and_writes = 0;
  std::uint64_t sleeps = 0;  ///< of all threads
};

/// Empty: the process has ended, or cannot be looked at.
std::optional<host_activity> activity_of(std::uint64_t pid);

class busy_wait_detector {
 public:
  using clock = std::chrono::steady_clock;

  /// Looks at the records and their processes. Returns for how many seconds every live process with a record has only
  /// used the processor, of which at least one has launched kernels; 0: one of them does something else.
  double look(const std::vector<simulated_process>& processes, clock::time_point moment = clock::now());

 private:
  struct seen {
    std::uint64_t record = 0;
    host_activity host;
  };
  /// Whether it is as it was, but for its use of the processor.
  static bool only_spun(const seen& before, const seen& after, double seconds);

  clock::time_point since_ = clock::now();
  std::map<std::uint64_t, seen> before_;
};

}  // namespace gpumem::cli
