// GPUMEM_DEVICES for a program that has its devices: which of them an allocator is opened over.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "gpumem/device.hpp"
#include "gpumem/gpu_usage.hpp"
#include "gpumem/settings.hpp"

namespace gpumem {

/// Of the devices that the driver shows, in the order of its ordinals, those that `with.devices` chooses. `usage` is
/// asked only where what the cards are doing matters. A lease that `auto` takes is held until the process ends.
/// Warnings are logged; with `with.verbose` also what was chosen, and why.
result<std::vector<device*>> selected_devices(std::span<device* const> visible, const settings& with,
                                              const std::function<result<std::vector<gpu_usage>>()>& usage);

struct opened_devices {
  std::vector<std::unique_ptr<device>> all;  ///< every GPU that the driver shows to this process, in its order
  std::vector<device*> chosen;
};
/// Opens the GPUs of this machine and chooses among them; takes no memory of them. `device_error` where there is no
/// driver or no GPU.
result<opened_devices> open_selected_devices(const settings& with);

}  // namespace gpumem
