// Applies GPUMEM_DEVICES inside a program: chooses the devices that an allocator is opened over.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "gpumem/device.hpp"
#include "gpumem/gpu_usage.hpp"
#include "gpumem/settings.hpp"

namespace gpumem {

/// Chooses by `options.devices` among the devices that the driver shows, in the order of its ordinals. Calls `usage`
/// only if the choice depends on it. Holds a lease that `auto` takes until the process ends. Logs warnings, and with
/// `options.verbose` the choice and its reasons.
result<std::vector<device*>> selected_devices(std::span<device* const> visible, const settings& options,
                                              const std::function<result<std::vector<gpu_usage>>()>& usage);

struct opened_devices {
  std::vector<std::unique_ptr<device>> all;  ///< every GPU that the driver shows to this process, in its order
  std::vector<device*> chosen;
};
/// Opens the GPUs of this machine and chooses among them; takes none of their memory. `device_error` without a driver
/// or GPU.
result<opened_devices> open_selected_devices(const settings& options);

}  // namespace gpumem
