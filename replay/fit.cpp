/// `fit`: the smallest sufficient device. Tries capacities from the largest down to the first failure.
#include <fmt/format.h>

#include "assign_or_return.hpp"
#include "baseline_allocator.hpp"
#include "bits.hpp"
#include "cuda_replay_device.hpp"
#include "measure.hpp"

namespace gpumem::bench {

std::optional<double> fit_figures::utilization() const noexcept {
  if (!min_capacity_bytes) return std::nullopt;
  return static_cast<double>(peak_live_bytes) / static_cast<double>(*min_capacity_bytes);
}

/// Integer arithmetic: 0.0025 is 1/400.
std::uint64_t fit_capacity(std::uint64_t peak_live_bytes, unsigned steps) noexcept {
  return round_down(peak_live_bytes + peak_live_bytes / 400 * steps + peak_live_bytes % 400 * steps / 400,
                    block_granularity);
}

sim_config fit_device(const replay_setup& setup, std::uint64_t capacity_bytes) {
  sim_config config = setup.device;
  config.capacity_bytes = capacity_bytes;
  config.granularity_bytes = block_granularity;
  config.foreign_bytes = 0;
  config.referee = false;
  return config;
}

result<policy_row> fit_row(const policy_row& row) {
  bool in_bytes = row.config.limit.unit == byte_limit::kind::bytes;
  for (const pool_spec& pool : row.config.pools) in_bytes |= pool.limit.unit == byte_limit::kind::bytes;
  if (in_bytes) {
    return status{errc::bad_setting, fmt::format("policy '{}': fit varies the capacity, so limit and pools must "
                                                 "be shares, such as 50%",
                                                 row.text)};
  }
  policy_row fitted = row;
  fitted.config.reserve_bytes = 0;
  fitted.config.verbose = false;
  return fitted;
}

result<fit_figures> search_fit(std::uint64_t peak_live_bytes, const first_failure_at& trial) {
  fit_figures figures{.peak_live_bytes = peak_live_bytes, .min_capacity_bytes = {}, .failures = {}};
  for (unsigned k = fit_steps + 1; k-- > 0;) {
    const std::uint64_t capacity_bytes = fit_capacity(peak_live_bytes, k);
    ASSIGN_OR_RETURN(const auto failed_at, trial(capacity_bytes));
    if (failed_at) break;
    figures.min_capacity_bytes = capacity_bytes;
  }
  for (const unsigned percent : shrinking_percents) {
    const std::uint64_t capacity_bytes = round_down(peak_live_bytes * percent / 100, block_granularity);
    ASSIGN_OR_RETURN(const auto failed_at, trial(capacity_bytes));
    figures.failures.push_back({.percent_of_peak = percent, .capacity_bytes = capacity_bytes, .at_op = failed_at});
  }
  return figures;
}

result<fit_figures> measure_fit(const trace& recorded, const policy_row& row, const replay_setup& setup) {
  const replay_plan plan = plan_for(recorded, row, setup);
  return search_fit(
      peak_live_of(recorded, row.tenants), [&](std::uint64_t capacity_bytes) -> result<std::optional<std::uint64_t>> {
        auto under_test = open_rig(fit_device(setup, capacity_bytes), row.config);
        if (!under_test)
          return std::optional<std::uint64_t>{0};  // the row's text was checked before, so it lacks memory to start
        ASSIGN_OR_RETURN(const auto outcome, replay_timed(plan, *under_test->memory, *under_test->gpu));
        return outcome.oom ? std::optional{outcome.ops} : std::nullopt;
      });
}

result<std::optional<std::uint64_t>> try_baseline_in(const trace& recorded, const policy_row& row,
                                                     const replay_setup& setup, std::uint64_t capacity_bytes) {
  ASSIGN_OR_RETURN(
      auto replay_device,
      cuda_replay_device::open(
          {.bytes = capacity_bytes, .referee = false, .granularity_bytes = block_granularity, .plug_in = row.plug_in}));
  auto memory = open_baseline(*replay_device, row.baseline);
  if (!memory) return std::optional<std::uint64_t>{0};
  ASSIGN_OR_RETURN(const auto outcome, replay_timed(plan_for(recorded, row, setup), **memory, *replay_device));
  return outcome.oom ? std::optional{outcome.ops} : std::nullopt;
}

}  // namespace gpumem::bench
