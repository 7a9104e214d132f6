/// The checked and the timed passes of a row. fit.cpp holds the search for a capacity.
#include "measure.hpp"

#include <algorithm>
#include <array>

namespace gpumem::bench {

result<rig> open_rig(const sim_config& device_config, const settings& with) {
  rig out;
  out.on = std::make_unique<sim_device>(device_config);
  const std::array<device*, 1> devices{out.on.get()};
  auto opened = allocator::open(devices, with);
  if (!opened) return opened.why();
  out.over = *std::move(opened);
  return out;
}

replay_plan plan_for(const trace& t, const policy_row& row, const replay_setup& setup) {
  return {.recorded = &t,
          .second_uses = plan_second_uses(t, setup.shared_use, setup.seed),
          .tenants = row.tenants,
          .lag_ns = setup.lag_ns};
}

double compare_figures::utilization() const noexcept {
  if (peak_reserved_bytes == 0) return 0;
  return static_cast<double>(outcome.peak_live_bytes) / static_cast<double>(peak_reserved_bytes);
}

result<compare_figures> measure_checked(const trace& t, const policy_row& row, const replay_setup& setup) {
  auto under_test = open_rig(setup.device, row.with);
  if (!under_test) return under_test.why();
  sim_device& on = *under_test->on;
  const auto outcome = replay_checked(plan_for(t, row, setup), *under_test->over, on);
  if (!outcome) return outcome.why();
  return compare_figures{.outcome = *outcome,
                         .peak_reserved_bytes = on.peak_used_bytes(),
                         .hazards = on.hazard_count(),
                         .in_device_calls_ns = on.in_calls_ns(),
                         .calls = on.calls(),
                         .host_ns_per_op = {}};
}

result<std::optional<double>> measure_time(const trace& t, const policy_row& row, const replay_setup& setup) {
  sim_config device_config = setup.device;
  device_config.referee = false;
  const replay_plan plan = plan_for(t, row, setup);
  std::array<double, 3> ns{};
  for (double& each : ns) {
    auto under_test = open_rig(device_config, row.with);
    if (!under_test) return under_test.why();
    const auto outcome = replay_timed(plan, *under_test->over, *under_test->on);
    if (!outcome) return outcome.why();
    if (outcome->ops == 0) return std::optional<double>{};
    each = static_cast<double>(outcome->elapsed_ns) / static_cast<double>(outcome->ops);
  }
  std::sort(ns.begin(), ns.end());
  return std::optional<double>{ns[1]};
}

}  // namespace gpumem::bench
