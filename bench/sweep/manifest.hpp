/// A sweep's manifest: traces, policies, devices, capacities and seeds. A small JSON file, read strictly.
///
/// All errors are found before the first unit runs: an unknown key, a policy that cannot be read or opened, a device, a
/// capacity, a glob without a match.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "gpumem/status.hpp"
#include "measure.hpp"

namespace gpumem::bench::sweep {

enum class sweep_mode : std::uint8_t { compare, fit };
std::string_view to_string(sweep_mode mode) noexcept;

/// The card's memory that a program may use. It is the limit of rows that name no limit.
struct capacity {
  std::string text;                          ///< `24GiB`, `30%`, `110%live`; empty: no limit
  std::optional<double> share_of_peak_live;  ///< `110%live`: 1.1
  /// The limit as text, for a trace with this peak.
  [[nodiscard]] std::string limit_for(std::uint64_t peak_live_bytes) const;
};

struct manifest {
  sweep_mode mode = sweep_mode::compare;
  std::vector<std::string> traces;     ///< files matched by the globs, sorted within each glob
  std::vector<std::string> workloads;  ///< texts for `make_workload`
  std::vector<std::string> policies;
  std::vector<std::string> devices;
  std::vector<capacity> capacities;
  std::vector<std::uint64_t> seeds;
  std::uint64_t lag_ns = 1'000'000;
  double shared_use = 0;
  std::uint64_t plan_steps = 0;  ///< the solver's steps for a trace's plan
  std::string text;              ///< normal form: equal for manifests with the same meaning
};

/// `bad_setting` names the file, the error and the expected form. Globs are relative to the file's folder.
result<manifest> read_manifest(const std::string& path);

/// The device and setup of a unit. Requires texts of a manifest that was read without error.
result<replay_setup> setup_for(const manifest& definition, std::string_view device, std::uint64_t seed);

}  // namespace gpumem::bench::sweep
