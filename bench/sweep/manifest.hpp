/// A sweep's manifest: what is replayed, under what, on what. A small JSON file, read strictly.
///
/// Everything that can be wrong with it is found before the first unit runs: an unknown key, a policy that cannot be
/// read or opened, a device, a capacity, a glob that matches nothing.
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

/// What a program may take of the card: the limit of the rows that name none.
struct capacity {
  std::string text;                          ///< `24GiB`, `30%`, `110%live`; empty: no limit
  std::optional<double> share_of_peak_live;  ///< of `110%live`: 1.1
  /// The limit's text for a trace of this peak.
  [[nodiscard]] std::string limit_for(std::uint64_t peak_live_bytes) const;
};

struct manifest {
  sweep_mode mode = sweep_mode::compare;
  std::vector<std::string> traces;     ///< files that the globs name, sorted within each glob
  std::vector<std::string> workloads;  ///< as `make_workload` reads them
  std::vector<std::string> policies;
  std::vector<std::string> devices;
  std::vector<capacity> capacities;
  std::vector<std::uint64_t> seeds;
  std::uint64_t lag_ns = 1'000'000;
  double shared_use = 0;
  std::uint64_t plan_steps = 0;  ///< what `planned` may spend on a trace's plan
  std::string text;              ///< the manifest in one form: two files that mean the same have the same text
};

/// `bad_setting` names the file, what is wrong and what was expected. Globs are relative to the file's folder.
result<manifest> read_manifest(const std::string& path);

/// The device and the rest of a unit's setup; every text comes from a manifest that was read.
result<replay_setup> setup_for(const manifest& of, std::string_view device, std::uint64_t seed);

}  // namespace gpumem::bench::sweep
