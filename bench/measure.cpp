/// The checked and the timed passes of a row. fit.cpp searches for a capacity.
#include "measure.hpp"

#include <algorithm>
#include <array>

#include "baseline_allocator.hpp"
#include "cuda_replay_device.hpp"
#include "gpumem/cuda_device.hpp"

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

namespace {

/// An allocator on CUDA streams: gpumem over the driver, or a baseline over the runtime.
struct cuda_rig {
  std::unique_ptr<cuda_replay_device> replay_device;
  std::unique_ptr<device> on;             ///< null for a baseline
  std::unique_ptr<logged_device> logged;  ///< between `on` and the allocator if there is a log
  std::unique_ptr<allocator> over;
};

bool simulated(const replay_setup& setup) { return !setup.cuda || setup.cuda->info.simulated; }

result<cuda_rig> open_cuda_rig(const policy_row& row, const replay_setup& setup, bool checked,
                               memory_log* log = nullptr) {
  const int ordinal = setup.cuda ? setup.cuda->info.ordinal : 0;
  const std::uint64_t bytes = setup.cuda ? setup.cuda->info.total_bytes : setup.device.capacity_bytes;
  cuda_rig out;
  auto replay_device = cuda_replay_device::open({.simulated = simulated(setup),
                                                 .ordinal = ordinal,
                                                 .bytes = bytes,
                                                 .referee = checked,
                                                 .plug_in = row.plug_in,
                                                 .works = checked});
  if (!replay_device) return replay_device.why();
  out.replay_device = *std::move(replay_device);
  if (!row.baseline.empty()) {
    auto opened = open_baseline(*out.replay_device, row.baseline);
    if (!opened) return opened.why();
    out.over = *std::move(opened);
    return out;
  }
  auto on = open_cuda_device({.ordinal = ordinal});
  if (!on) return on.why();
  out.on = *std::move(on);
  if (log != nullptr) out.logged = std::make_unique<logged_device>(*out.on, *log);
  const std::array<device*, 1> devices{log != nullptr ? out.logged.get() : out.on.get()};
  auto opened = allocator::open(devices, row.with);
  if (!opened) return opened.why();
  out.over = *std::move(opened);
  out.replay_device->reserved_by([over = out.over.get()] {
    std::uint64_t sum = 0;
    for (const logical_device& each : over->devices()) {
      if (const auto stats = over->stats(each.ordinal)) sum += stats->reserved_bytes;
    }
    return sum;
  });
  return out;
}

replay_plan cuda_plan_for(const trace& t, const policy_row& row, const replay_setup& setup) {
  replay_plan plan = plan_for(t, row, setup);
  if (row.baseline == "cuda_malloc" && !simulated(setup)) plan.most_ops = raw_prefix_ops;
  return plan;
}

/// Sums the pools' statistics: on a GPU only the allocator counts its memory.
page_figures pages_of(const allocator& over) {
  page_figures sum;
  for (const logical_device& each : over.devices()) {
    if (const auto stats = over.stats(each.ordinal)) {
      sum.mapped += stats->mapped_pages;
      sum.remapped += stats->remapped_pages;
    }
  }
  return sum;
}

result<compare_figures> measure_checked_on_cuda(const trace& t, const policy_row& row, const replay_setup& setup) {
  auto under_test = open_cuda_rig(row, setup, true);
  if (!under_test) return under_test.why();
  cuda_replay_device& replay_device = *under_test->replay_device;
  const replay_plan plan = cuda_plan_for(t, row, setup);
  const auto outcome = replay_checked(plan, *under_test->over, replay_device);
  if (!outcome) return outcome.why();
  compare_figures out{.outcome = *outcome,
                      .peak_reserved_bytes = replay_device.peak_used_bytes(),
                      .hazards = replay_device.hazards(),
                      .in_device_calls_ns = replay_device.in_calls_ns(),
                      .calls = replay_device.device_calls(),
                      .pages = {},
                      .prefix_ops = {},
                      .host_ns_per_op = {}};
  if (!out.calls && under_test->on != nullptr) out.calls = under_test->on->calls();
  if (row.baseline.empty()) out.pages = pages_of(*under_test->over);
  if (plan.most_ops < t.ops.size()) out.prefix_ops = plan.most_ops;
  return out;
}

result<replay_outcome> replay_timed_on_cuda(const trace& t, const policy_row& row, const replay_setup& setup) {
  auto under_test = open_cuda_rig(row, setup, false);
  if (!under_test) return under_test.why();
  return replay_timed(cuda_plan_for(t, row, setup), *under_test->over, *under_test->replay_device);
}

result<replay_outcome> replay_timed_on_sim(const replay_plan& plan, const policy_row& row,
                                           const sim_config& device_config) {
  auto under_test = open_rig(device_config, row.with);
  if (!under_test) return under_test.why();
  return replay_timed(plan, *under_test->over, *under_test->on);
}

history history_of(const memory_log& log, const replay_outcome& outcome, const allocator& over) {
  history out = make_history(log, outcome.ops);
  for (const logical_device& each : over.devices()) out.capacity_bytes += each.limit_bytes;
  return out;
}

bool on_cuda(const policy_row& row, const replay_setup& setup) { return setup.cuda || !row.baseline.empty(); }

}  // namespace

status try_on_cuda(const policy_row& row, const replay_setup& setup) {
  const auto opened = open_cuda_rig(row, setup, false);
  if (opened) return {};
  return {opened.code(),
          (row.baseline.empty() ? "policy '" : "baseline '") + row.text + "': " + opened.why().message()};
}

double compare_figures::utilization() const noexcept {
  if (peak_reserved_bytes == 0) return 0;
  return static_cast<double>(outcome.peak_live_bytes) / static_cast<double>(peak_reserved_bytes);
}

result<compare_figures> measure_checked(const trace& t, const policy_row& row, const replay_setup& setup) {
  if (on_cuda(row, setup)) return measure_checked_on_cuda(t, row, setup);
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
                         .pages = page_figures{.mapped = on.mapped_pages(), .remapped = on.remapped_pages()},
                         .prefix_ops = {},
                         .host_ns_per_op = {}};
}

result<std::optional<double>> measure_pass(const trace& t, const policy_row& row, const replay_setup& setup) {
  sim_config device_config = setup.device;
  device_config.referee = false;
  const auto outcome = on_cuda(row, setup) ? replay_timed_on_cuda(t, row, setup)
                                           : replay_timed_on_sim(plan_for(t, row, setup), row, device_config);
  if (!outcome) return outcome.why();
  if (outcome->ops == 0) return std::optional<double>{};
  return std::optional{static_cast<double>(outcome->elapsed_ns) / static_cast<double>(outcome->ops)};
}

result<std::optional<double>> median_of_three(const std::function<result<std::optional<double>>()>& pass) {
  std::array<double, 3> ns{};
  for (double& each : ns) {
    const auto got = pass();
    if (!got || !*got) return got;
    each = **got;
  }
  std::sort(ns.begin(), ns.end());
  return std::optional{ns[1]};
}

result<std::optional<double>> measure_time(const trace& t, const policy_row& row, const replay_setup& setup) {
  return median_of_three([&] { return measure_pass(t, row, setup); });
}

result<std::optional<history>> measure_history(const trace& t, const policy_row& row, const replay_setup& setup) {
  if (!row.baseline.empty()) return std::optional<history>{};
  sim_config device_config = setup.device;
  device_config.referee = false;
  sim_device on{device_config};
  memory_log log;
  logged_device logged{on, log};
  const std::array<device*, 1> devices{&logged};
  auto over = allocator::open(devices, row.with);
  if (!over) return over.why();
  replay_plan plan = plan_for(t, row, setup);
  plan.log = &log;
  const auto outcome = replay_checked(plan, **over, on);
  if (!outcome) return outcome.why();
  return std::optional{history_of(log, *outcome, **over)};
}

result<history> measure_history_on_cuda(const trace& t, const policy_row& row, const replay_setup& setup) {
  memory_log log;
  auto under_test = open_cuda_rig(row, setup, true, &log);
  if (!under_test) return under_test.why();
  replay_plan plan = cuda_plan_for(t, row, setup);
  plan.log = &log;
  const auto outcome = replay_checked(plan, *under_test->over, *under_test->replay_device);
  if (!outcome) return outcome.why();
  return history_of(log, *outcome, *under_test->over);
}

}  // namespace gpumem::bench
