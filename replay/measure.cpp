/// The checked and the timed passes of a row. fit.cpp searches for a capacity.
#include "measure.hpp"

#include <algorithm>
#include <array>
#include <functional>
#include <utility>

#include "assign_or_return.hpp"
#include "baseline_allocator.hpp"
#include "cuda_replay_device.hpp"
#include "gpumem/cuda_device.hpp"

namespace gpumem::bench {

result<rig> open_rig(const sim_config& device_config, const settings& config) {
  rig opened_rig;
  opened_rig.gpu = std::make_unique<sim_device>(device_config);
  const std::array<device*, 1> devices{opened_rig.gpu.get()};
  ASSIGN_OR_RETURN(opened_rig.memory, allocator::open(devices, config));
  return opened_rig;
}

replay_plan plan_for(const trace& recorded, const policy_row& row, const replay_setup& setup) {
  return {.recorded = &recorded,
          .second_uses = plan_second_uses(recorded, setup.shared_use, setup.seed),
          .tenants = row.tenants,
          .lag_ns = setup.lag_ns,
          .sample_peak = setup.sample_peak};
}

namespace {

/// An allocator on CUDA streams: gpumem over the driver, or a baseline over the runtime.
struct cuda_rig {
  std::unique_ptr<cuda_replay_device> replay_device;
  std::unique_ptr<device> gpu;            ///< null for a baseline
  std::unique_ptr<logged_device> logged;  ///< between `gpu` and the allocator if there is a log
  std::unique_ptr<allocator> memory;
};

bool simulated(const replay_setup& setup) { return !setup.cuda || setup.cuda->info.simulated; }

result<cuda_rig> open_cuda_rig(const policy_row& row, const replay_setup& setup, bool checked,
                               memory_log* log = nullptr) {
  const int ordinal = setup.cuda ? setup.cuda->info.ordinal : 0;
  const std::uint64_t bytes = setup.cuda ? setup.cuda->info.total_bytes : setup.device.capacity_bytes;
  cuda_rig opened_rig;
  ASSIGN_OR_RETURN(auto replay_device, cuda_replay_device::open({.simulated = simulated(setup),
                                                                 .ordinal = ordinal,
                                                                 .bytes = bytes,
                                                                 .referee = checked,
                                                                 .plug_in = row.plug_in,
                                                                 .works = checked}));
  opened_rig.replay_device = std::move(replay_device);
  if (!row.baseline.empty()) {
    ASSIGN_OR_RETURN(opened_rig.memory, open_baseline(*opened_rig.replay_device, row.baseline));
    return opened_rig;
  }
  ASSIGN_OR_RETURN(opened_rig.gpu, open_cuda_device({.ordinal = ordinal}));
  if (log != nullptr) opened_rig.logged = std::make_unique<logged_device>(*opened_rig.gpu, *log);
  const std::array<device*, 1> devices{log != nullptr ? opened_rig.logged.get() : opened_rig.gpu.get()};
  ASSIGN_OR_RETURN(opened_rig.memory, allocator::open(devices, row.config));
  opened_rig.replay_device->reserved_by([over = opened_rig.memory.get()] {
    std::uint64_t sum = 0;
    for (const logical_device& each : over->devices()) {
      if (const auto stats = over->stats(each.ordinal)) sum += stats->reserved_bytes;
    }
    return sum;
  });
  return opened_rig;
}

replay_plan cuda_plan_for(const trace& recorded, const policy_row& row, const replay_setup& setup) {
  replay_plan plan = plan_for(recorded, row, setup);
  if (row.baseline == "cuda_malloc" && !simulated(setup)) plan.most_ops = raw_prefix_ops;
  return plan;
}

/// Reads the counters of a simulated device in the middle of a replay, and subtracts them at the end.
class half_meter {
 public:
  using counters = std::optional<half_figures>;
  half_meter(replay_plan& plan, std::function<counters()> read) : read_{std::move(read)} {
    plan.at_half = [this] { middle_ = read_(); };
  }
  [[nodiscard]] counters second_half() const {
    const counters end = middle_ ? read_() : std::nullopt;
    if (!end) return end;
    return half_figures{.memory_calls = end->memory_calls - middle_->memory_calls,
                        .in_device_calls_ns = end->in_device_calls_ns - middle_->in_device_calls_ns};
  }

 private:
  std::function<counters()> read_;
  counters middle_;
};

/// Sums the pools' statistics, because on a GPU only the allocator counts its memory.
page_figures pages_of(const allocator& memory) {
  page_figures sum;
  for (const logical_device& each : memory.devices()) {
    if (const auto stats = memory.stats(each.ordinal)) {
      sum.mapped += stats->mapped_pages;
      sum.remapped += stats->remapped_pages;
    }
  }
  return sum;
}

result<compare_figures> measure_checked_on_cuda(const trace& recorded, const policy_row& row,
                                                const replay_setup& setup) {
  ASSIGN_OR_RETURN(auto under_test, open_cuda_rig(row, setup, true));
  cuda_replay_device& replay_device = *under_test.replay_device;
  replay_plan plan = cuda_plan_for(recorded, row, setup);
  const half_meter meter{plan, [&]() -> half_meter::counters {
                           const auto calls = replay_device.device_calls();
                           const auto ns = replay_device.in_calls_ns();
                           if (!calls || !ns) return std::nullopt;
                           return half_figures{.memory_calls = memory_calls_of(*calls), .in_device_calls_ns = *ns};
                         }};
  ASSIGN_OR_RETURN(const auto outcome, replay_checked(plan, *under_test.memory, replay_device));
  compare_figures figures{.outcome = outcome,
                          .peak_reserved_bytes = replay_device.peak_used_bytes(),
                          .hazards = replay_device.hazards(),
                          .in_device_calls_ns = replay_device.in_calls_ns(),
                          .calls = replay_device.device_calls(),
                          .pages = {},
                          .prefix_ops = {},
                          .host_ns_per_op = {}};
  if (!figures.calls && under_test.gpu != nullptr) figures.calls = under_test.gpu->calls();
  figures.second_half = meter.second_half();
  if (row.baseline.empty()) figures.pages = pages_of(*under_test.memory);
  if (plan.most_ops < recorded.ops.size()) figures.prefix_ops = plan.most_ops;
  return figures;
}

result<replay_outcome> replay_timed_on_cuda(const trace& recorded, const policy_row& row, const replay_setup& setup) {
  ASSIGN_OR_RETURN(auto under_test, open_cuda_rig(row, setup, false));
  return replay_timed(cuda_plan_for(recorded, row, setup), *under_test.memory, *under_test.replay_device);
}

result<replay_outcome> replay_timed_on_sim(const replay_plan& plan, const policy_row& row,
                                           const sim_config& device_config) {
  ASSIGN_OR_RETURN(auto under_test, open_rig(device_config, row.config));
  return replay_timed(plan, *under_test.memory, *under_test.gpu);
}

history history_of(const memory_log& log, const replay_outcome& outcome, const allocator& memory) {
  history recorded_history = make_history(log, outcome.ops);
  for (const logical_device& each : memory.devices()) recorded_history.capacity_bytes += each.limit_bytes;
  return recorded_history;
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

std::uint64_t compare_figures::waste_bytes() const noexcept {
  return peak_reserved_bytes - std::min(peak_reserved_bytes, outcome.peak_live_bytes);
}

std::uint64_t memory_calls_of(const call_counts& calls) noexcept {
  std::uint64_t sum = 0;
  for (const device_call kind :
       {device_call::alloc, device_call::free, device_call::map, device_call::unmap, device_call::synchronize}) {
    sum += calls[static_cast<std::size_t>(kind)];
  }
  return sum;
}

result<compare_figures> measure_checked(const trace& recorded, const policy_row& row, const replay_setup& setup) {
  if (on_cuda(row, setup)) return measure_checked_on_cuda(recorded, row, setup);
  ASSIGN_OR_RETURN(auto under_test, open_rig(setup.device, row.config));
  sim_device& simulated = *under_test.gpu;
  replay_plan plan = plan_for(recorded, row, setup);
  const half_meter meter{plan, [&]() -> half_meter::counters {
                           return half_figures{.memory_calls = memory_calls_of(simulated.calls()),
                                               .in_device_calls_ns = simulated.in_calls_ns()};
                         }};
  ASSIGN_OR_RETURN(const auto outcome, replay_checked(plan, *under_test.memory, simulated));
  return compare_figures{
      .outcome = outcome,
      .peak_reserved_bytes = simulated.peak_used_bytes(),
      .hazards = simulated.hazard_count(),
      .in_device_calls_ns = simulated.in_calls_ns(),
      .calls = simulated.calls(),
      .pages = page_figures{.mapped = simulated.mapped_pages(), .remapped = simulated.remapped_pages()},
      .prefix_ops = {},
      .host_ns_per_op = {},
      .second_half = meter.second_half()};
}

result<std::optional<double>> measure_pass(const trace& recorded, const policy_row& row, const replay_setup& setup) {
  sim_config device_config = setup.device;
  device_config.referee = false;
  ASSIGN_OR_RETURN(const auto outcome, on_cuda(row, setup)
                                           ? replay_timed_on_cuda(recorded, row, setup)
                                           : replay_timed_on_sim(plan_for(recorded, row, setup), row, device_config));
  if (outcome.ops == 0) return std::optional<double>{};
  return std::optional{static_cast<double>(outcome.elapsed_ns) / static_cast<double>(outcome.ops)};
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

result<std::optional<double>> measure_time(const trace& recorded, const policy_row& row, const replay_setup& setup) {
  return median_of_three([&] { return measure_pass(recorded, row, setup); });
}

result<std::optional<history>> measure_history(const trace& recorded, const policy_row& row,
                                               const replay_setup& setup) {
  if (!row.baseline.empty()) return std::optional<history>{};
  sim_config device_config = setup.device;
  device_config.referee = false;
  sim_device simulated{device_config};
  memory_log log;
  logged_device logged{simulated, log};
  const std::array<device*, 1> devices{&logged};
  ASSIGN_OR_RETURN(auto memory, allocator::open(devices, row.config));
  replay_plan plan = plan_for(recorded, row, setup);
  plan.log = &log;
  ASSIGN_OR_RETURN(const auto outcome, replay_checked(plan, *memory, simulated));
  return std::optional{history_of(log, outcome, *memory)};
}

result<history> measure_history_on_cuda(const trace& recorded, const policy_row& row, const replay_setup& setup) {
  memory_log log;
  ASSIGN_OR_RETURN(auto under_test, open_cuda_rig(row, setup, true, &log));
  replay_plan plan = cuda_plan_for(recorded, row, setup);
  plan.log = &log;
  ASSIGN_OR_RETURN(const auto outcome, replay_checked(plan, *under_test.memory, *under_test.replay_device));
  return history_of(log, outcome, *under_test.memory);
}

}  // namespace gpumem::bench
