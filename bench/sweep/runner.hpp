/// Runs units, each in a process of its own, and writes what they say. Where the next unit comes from is another's
/// business: a counter in this process, or one that all ranks of an MPI job draw from.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "gpumem/status.hpp"
#include "plan.hpp"
#include "result_file.hpp"

namespace gpumem::bench::sweep {

/// Any thread.
class unit_source {
 public:
  virtual ~unit_source() = default;
  /// Index of a unit of the plan; nothing where none is left.
  virtual std::optional<std::uint32_t> next() = 0;
  /// One that was drawn is in the file.
  virtual void done(bool failed) = 0;
};

struct run_options {
  std::string program;  ///< gpumem_bench, which runs the units
  std::string folder;
  std::string label;  ///< of this writer's files
  unsigned jobs = 1;
  std::chrono::milliseconds time_limit{600'000};  ///< of one unit
};

struct run_outcome {
  std::uint64_t units = 0;
  std::uint64_t failed = 0;
};

/// Until the source is empty. A unit that crashes or takes too long is told on standard error, with its key, and
/// recorded; the rest goes on. `bad_setting` where results cannot be written: then no further unit is begun.
result<run_outcome> run_units(const sweep_plan& plan, const run_options& with, unit_source& from);

}  // namespace gpumem::bench::sweep
