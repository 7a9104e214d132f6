/// Runs units, each in its own process, and writes their results. Units come from a `unit_source`: a counter in this
/// process, or one shared by all ranks of an MPI job.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>

#include "gpumem/status.hpp"
#include "plan.hpp"
#include "result_file.hpp"

namespace gpumem::bench::sweep {

/// Any thread.
class unit_source {
 public:
  virtual ~unit_source() = default;
  /// The index of a unit of the plan; empty if none is left.
  virtual std::optional<std::uint32_t> next() = 0;
  /// Reports that the result of a drawn unit is in the file.
  virtual void done(bool failed) = 0;
};

struct run_options {
  std::string program;  ///< path of gpumem_bench, which runs the units
  std::string folder;
  std::string label;  ///< part of the names of this writer's files
  unsigned jobs = 1;
  std::chrono::milliseconds time_limit{600'000};  ///< for one unit
};

struct run_outcome {
  std::uint64_t units = 0;
  std::uint64_t failed = 0;
};

/// Runs units until the source is empty. A unit that crashes or takes too long is reported on standard error with its
/// key, and recorded. `bad_setting` if results cannot be written; no further unit is begun then.
result<run_outcome> run_units(const sweep_plan& plan, const run_options& options, unit_source& source);

}  // namespace gpumem::bench::sweep
