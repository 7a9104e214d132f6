/// The host's cost of each device call by size: measured on a GPU, or read from the clock of the simulated device.
///
/// The table has the form of sim_device's (src/device/README.md), so that figures of a GPU can replace it. One thread
/// and an idle device; in a program, calls that wait take longer.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "gpumem/device.hpp"
#include "gpumem/sim_device.hpp"
#include "gpumem/status.hpp"
#include "measure.hpp"

namespace gpumem::bench {

struct call_time {
  device_call call = device_call::alloc;
  std::uint64_t bytes = 0;  ///< 0: the call has no size
  double median_ns = 0;
  double p90_ns = 0;
  unsigned times = 0;
};

/// `fixed + per_page * further 2 MiB`, fitted by least squares to a call's medians.
struct fitted_cost {
  device_call call = device_call::alloc;
  double fixed_ns = 0;
  double per_page_ns = 0;
};

struct cost_figures {
  std::vector<call_time> times;
  std::vector<fitted_cost> fitted;
};

/// `now_ns` reads the host's clock or the simulated device's.
result<cost_figures> measure_costs(device& device, const std::function<std::uint64_t()>& now_ns);

/// Measures the device of the setup.
result<cost_figures> measure_costs_of(const replay_setup& setup);

std::string costs_table(const cost_figures& figures, const replay_setup& setup);
std::string costs_json(const cost_figures& figures, const replay_setup& setup);

}  // namespace gpumem::bench
