/// One row of `compare` or `fit`: a policy on a trace, on simulated devices created for it.
///
/// Every pass creates a new device and allocator, so rows are independent and may run in parallel. Timed passes run
/// alone, because load would distort their times.
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

/// A device of the CUDA driver: a GPU, or a device of the simulated driver.
struct cuda_target {
  device_info info;
};

/// Number of a trace's operations replayed on a GPU for the baseline that calls the driver for each block. A whole
/// trace would take hours and show nothing new.
inline constexpr std::size_t raw_prefix_ops = 20'000;

/// The settings common to all rows of a run.
struct replay_setup {
  sim_config device;
  std::optional<cuda_target> cuda;  ///< empty: the simulated device; baselines then use the simulated driver
  std::uint64_t lag_ns = 1'000'000;
  double shared_use = 0;  ///< share of the blocks that a second stream uses, 0 to 1
  std::uint64_t seed = 1;
  bool sample_peak = true;               ///< see `replay_plan::sample_peak`
  std::chrono::seconds peer_limit{600};  ///< time limit for one answer of a peer's process
};

/// An allocator and the device under it. The allocator is destroyed first.
struct rig {
  std::unique_ptr<sim_device> gpu;
  std::unique_ptr<allocator> memory;
};
result<rig> open_rig(const sim_config& device, const settings& config);

replay_plan plan_for(const trace& recorded, const policy_row& row, const replay_setup& setup);

/// Pages mapped for the first time, and pages remapped to another address.
struct page_figures {
  std::uint64_t mapped = 0;
  std::uint64_t remapped = 0;
};

/// The cost of a replay from its middle on, when a program that repeats steps has warmed up.
struct half_figures {
  std::uint64_t memory_calls = 0;  ///< see `memory_calls_of`
  std::uint64_t in_device_calls_ns = 0;
};

/// The calls that take, return, map or unmap memory, or wait for the whole device.
std::uint64_t memory_calls_of(const call_counts& calls) noexcept;

struct compare_figures {
  replay_outcome outcome;                           ///< of the checked pass
  std::uint64_t peak_reserved_bytes = 0;            ///< on the device, sum over all pools
  std::optional<std::uint64_t> hazards;             ///< none on a GPU
  std::optional<std::uint64_t> in_device_calls_ns;  ///< virtual; none on a GPU
  std::optional<call_counts> calls;                 ///< none for a baseline on a GPU
  std::optional<page_figures> pages;                ///< none for a baseline on a GPU
  std::optional<std::size_t> prefix_ops;            ///< the number of operations replayed, if not the whole trace
  std::optional<double> host_ns_per_op;             ///< real time; empty if no operation succeeded
  std::optional<double> loop_ns_per_op{};           ///< real time of `measure_loop`; only if peers are among the rows
  std::optional<half_figures> second_half{};        ///< none on a GPU, for peers, and if memory ran out before
  [[nodiscard]] double utilization() const noexcept;
  /// Reserved memory beyond the peak of live memory.
  [[nodiscard]] std::uint64_t waste_bytes() const noexcept;
};

/// Whether the row can be opened on CUDA streams; the error names the row.
status try_on_cuda(const policy_row& row, const replay_setup& setup);

/// Runs the checked pass, which gives every figure except `host_ns_per_op`.
result<compare_figures> measure_checked(const trace& recorded, const policy_row& row, const replay_setup& setup);
/// One timed pass: nanoseconds an operation.
result<std::optional<double>> measure_pass(const trace& recorded, const policy_row& row, const replay_setup& setup);
result<std::optional<double>> median_of_three(const std::function<result<std::optional<double>>()>& pass);
/// The median of three timed passes: nanoseconds an operation.
result<std::optional<double>> measure_time(const trace& recorded, const policy_row& row, const replay_setup& setup);

/// Memory over time, always on the simulated device; empty for a baseline.
result<std::optional<history>> measure_history(const trace& recorded, const policy_row& row, const replay_setup& setup);
/// Memory over time of a policy on the setup's card.
result<history> measure_history_on_cuda(const trace& recorded, const policy_row& row, const replay_setup& setup);

/// The operation at which a replay first runs out of memory on a device of this capacity.
struct first_failure {
  unsigned percent_of_peak = 0;  ///< of peak live
  std::uint64_t capacity_bytes = 0;
  std::optional<std::uint64_t> at_op;  ///< empty: never; 0: the policy cannot start
};
/// The capacities tried for `first_failure`, in percent of peak live.
inline constexpr std::array<unsigned, 7> shrinking_percents{120, 110, 105, 100, 90, 75, 50};

struct fit_figures {
  std::uint64_t peak_live_bytes = 0;
  std::optional<std::uint64_t> min_capacity_bytes;  ///< empty: 1.5 times the peak does not suffice
  std::vector<first_failure> failures;              ///< in order of decreasing capacity
  [[nodiscard]] std::optional<double> utilization() const noexcept;
};

/// The capacity of step `k`, 0 to `fit_steps`: each step adds a quarter of a percent of peak live.
inline constexpr unsigned fit_steps = 200;
std::uint64_t fit_capacity(std::uint64_t peak_live_bytes, unsigned steps) noexcept;
/// A device of that capacity: segments of any multiple of 512, no reserve, no referee.
sim_config fit_device(const replay_setup& setup, std::uint64_t capacity_bytes);
/// The row as `fit` runs it. `bad_setting` for a limit or pools in bytes, because `fit` varies the capacity.
result<policy_row> fit_row(const policy_row& row);

/// The operation at which a replay runs out of memory on a device of this capacity. Empty: it does not; 0: the row
/// cannot be opened.
using first_failure_at = std::function<result<std::optional<std::uint64_t>>(std::uint64_t capacity_bytes)>;
/// The search of `fit` with any trial.
result<fit_figures> search_fit(std::uint64_t peak_live_bytes, const first_failure_at& trial);
/// Tries a baseline over the simulated driver.
result<std::optional<std::uint64_t>> try_baseline_in(const trace& recorded, const policy_row& row,
                                                     const replay_setup& setup, std::uint64_t capacity_bytes);

/// Finds the smallest sufficient capacity, trying from 1.5 times peak live down to the first failure. Requires a row of
/// `fit_row`.
result<fit_figures> measure_fit(const trace& recorded, const policy_row& row, const replay_setup& setup);

}  // namespace gpumem::bench
