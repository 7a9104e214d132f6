/// One row of `compare` and of `fit`: a policy on a trace, on simulated devices made for it.
///
/// Every pass gets a fresh device and a fresh allocator, so rows do not see each other and may run at once, except
/// for the timed passes, whose times would then mean nothing.
#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "gpumem/allocator.hpp"
#include "gpumem/sim_device.hpp"
#include "history.hpp"
#include "policy_row.hpp"
#include "replay.hpp"

namespace gpumem::bench {

/// A device of the CUDA driver's: a GPU, or one of the driver's double.
struct cuda_target {
  device_info info;
};

/// Of the baseline that calls the driver for each block, on a GPU: more would take hours and say nothing new.
inline constexpr std::size_t raw_prefix_ops = 20'000;

/// What the rows of a run have in common.
struct replay_setup {
  sim_config device;
  std::optional<cuda_target> cuda;  ///< else the simulated device, with baselines over the driver's double
  std::uint64_t lag_ns = 1'000'000;
  double shared_use = 0;  ///< share of the blocks that a second stream uses, 0 to 1
  std::uint64_t seed = 1;
  std::chrono::seconds peer_limit{600};  ///< how long a peer's process may take for one answer
};

/// An allocator and the device under it, which goes last.
struct rig {
  std::unique_ptr<sim_device> on;
  std::unique_ptr<allocator> over;
};
result<rig> open_rig(const sim_config& device, const settings& with);

replay_plan plan_for(const trace& t, const policy_row& row, const replay_setup& setup);

/// Pages mapped behind a range for the first time, and pages mapped again elsewhere.
struct page_figures {
  std::uint64_t mapped = 0;
  std::uint64_t remapped = 0;
};

struct compare_figures {
  replay_outcome outcome;                           ///< of the checked pass
  std::uint64_t peak_reserved_bytes = 0;            ///< on the device, of all pools at once
  std::optional<std::uint64_t> hazards;             ///< none on a GPU
  std::optional<std::uint64_t> in_device_calls_ns;  ///< virtual; none on a GPU
  std::optional<call_counts> calls;                 ///< none for a baseline on a GPU
  std::optional<page_figures> pages;                ///< none for a baseline on a GPU
  std::optional<std::size_t> prefix_ops;            ///< set where only so many of the trace's operations were done
  std::optional<double> host_ns_per_op;             ///< real; none where not a single operation succeeded
  std::optional<double> loop_ns_per_op{};           ///< real, of `measure_loop`; where peers are among the rows
  [[nodiscard]] double utilization() const noexcept;
};

/// Whether the row can be opened on CUDA streams; names the row where it cannot.
status try_on_cuda(const policy_row& row, const replay_setup& setup);

/// The checked pass: everything but `host_ns_per_op`.
result<compare_figures> measure_checked(const trace& t, const policy_row& row, const replay_setup& setup);
/// Nanoseconds an operation of one timed pass.
result<std::optional<double>> measure_pass(const trace& t, const policy_row& row, const replay_setup& setup);
result<std::optional<double>> median_of_three(const std::function<result<std::optional<double>>()>& pass);
/// Nanoseconds an operation, the median of three timed passes.
result<std::optional<double>> measure_time(const trace& t, const policy_row& row, const replay_setup& setup);

/// Memory over time, on the simulated device whatever the setup's is; none of a baseline.
result<std::optional<history>> measure_history(const trace& t, const policy_row& row, const replay_setup& setup);
/// The same of a policy on the setup's card.
result<history> measure_history_on_cuda(const trace& t, const policy_row& row, const replay_setup& setup);

/// When a replay first runs out of memory on a device of so many bytes.
struct first_failure {
  unsigned percent_of_peak = 0;  ///< of live
  std::uint64_t capacity_bytes = 0;
  std::optional<std::uint64_t> at_op;  ///< none: it does not; 0 where the policy cannot even start
};
/// The capacities at which that is looked at, in percent of the peak of live.
inline constexpr std::array<unsigned, 7> shrinking_percents{120, 110, 105, 100, 90, 75, 50};

struct fit_figures {
  std::uint64_t peak_live_bytes = 0;
  std::optional<std::uint64_t> min_capacity_bytes;  ///< none: not even 1.5 times the peak is enough
  std::vector<first_failure> failures;              ///< as capacity shrinks
  [[nodiscard]] std::optional<double> utilization() const noexcept;
};

/// The capacity of step `k` of 0 to `fit_steps`: peak live and a quarter of a percent more at each.
inline constexpr unsigned fit_steps = 200;
std::uint64_t fit_capacity(std::uint64_t peak_live_bytes, unsigned k) noexcept;
/// The device of that capacity: segments of any multiple of 512, nothing set aside, no referee.
sim_config fit_device(const replay_setup& setup, std::uint64_t capacity_bytes);
/// Limits and pools in bytes make no sense where the capacity is what is sought: `bad_setting`.
result<policy_row> fit_row(const policy_row& row);

/// The operation at which a replay runs out of memory on a device of so many bytes; none: it does not. 0 where the row
/// cannot even be opened there.
using first_failure_at = std::function<result<std::optional<std::uint64_t>>(std::uint64_t capacity_bytes)>;
/// The search of `fit`, whatever is tried.
result<fit_figures> search_fit(std::uint64_t peak_live_bytes, const first_failure_at& trial);
/// A trial of a baseline, over the driver's double.
result<std::optional<std::uint64_t>> try_baseline_in(const trace& t, const policy_row& row, const replay_setup& setup,
                                                     std::uint64_t capacity_bytes);

/// The smallest capacity above which every one tried up to 1.5 times passes. `row` comes from `fit_row`.
result<fit_figures> measure_fit(const trace& t, const policy_row& row, const replay_setup& setup);

}  // namespace gpumem::bench
