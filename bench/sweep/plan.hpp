/// The units of a sweep: every trace under every policy, device, capacity and seed, each with a key.
///
/// A unit's key is a hash of the trace's bytes, the settings and the program. So a result is found again on any
/// machine, and never confused with that of another trace, setting or build.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "gpumem/status.hpp"
#include "manifest.hpp"

namespace gpumem::bench::sweep {

using hash128 = std::array<std::uint64_t, 2>;
/// 32 hexadecimal digits.
std::string hex(const hash128& hash);

/// A trace's file, or a workload created when a unit runs.
struct trace_source {
  std::string path;  ///< a file, or the text of a workload
  std::string name;  ///< unique; used in the results
  bool workload = false;
  hash128 content{};
  double ops = 0;  ///< estimated from the size of the file
};

struct unit {
  hash128 key{};
  double cost = 0;  ///< estimated; only for comparisons
  std::uint32_t trace = 0;
  std::uint16_t policy = 0;
  std::uint16_t device = 0;
  std::uint16_t capacity = 0;
  std::uint16_t seed = 0;
};

struct sweep_plan {
  manifest definition;
  std::string version;  ///< version of the replaying program
  std::vector<trace_source> traces;
  std::vector<unit> units;           ///< in the order of the merged results
  std::vector<std::uint32_t> order;  ///< indexes of `units`, longest first
};

/// The release and a hash of the program's file.
result<std::string> program_version(const std::string& program);

/// Reads every trace's bytes once, on `jobs` threads. Traces with equal content count once. An unreadable trace gets a
/// hash of its path, and its units report the error.
std::vector<trace_source> find_sources(const manifest& definition, unsigned jobs);

/// Deterministic: the same on every rank and in every shard.
sweep_plan make_plan(manifest definition, std::string version, std::vector<trace_source> traces);

/// The request to a unit's process, as one line of JSON.
std::string request_of(const sweep_plan& plan, const unit& work);
/// The beginning of a unit's row: key, policy, device, capacity, seed; JSON without the closing brace.
std::string row_head(const sweep_plan& plan, const unit& work);
/// For messages: `trace under policy, sim:24GiB, capacity 4GiB, seed 1`.
std::string describe(const sweep_plan& plan, const unit& work);

}  // namespace gpumem::bench::sweep
