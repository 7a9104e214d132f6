// The settings of a preloaded program, read from the environment once, at its first driver call, and shared by every
// file of the shim. Any thread.
#pragma once

#include <optional>

#include "gpumem/settings.hpp"
#include "gpumem/status.hpp"

namespace gpumem::preload {

struct process_settings {
  status usable;  ///< an error if a setting cannot be used: then the program gets no device memory
  settings options;
};

/// Reads the settings at the first call, and logs every variable that looks wrong without being an error.
const process_settings& settings_of_process();

/// Returns the scope of a device's limit. `on_device`: the device's own settings, from `settings::for_device`.
limit_scope scope_of(const settings& on_device) noexcept;

/// Whether a limit, pools or a group are set for any device. If gpumem cannot serve such a program, the program gets no
/// memory; without these settings the driver serves it.
bool guards_memory() noexcept;

/// Whether a limit or a group counts memory that the program takes outside gpumem, on any device.
bool limits_process() noexcept;

/// Returns the limit on the whole process on one device, if there is one.
std::optional<byte_limit> process_limit_of(int ordinal);

}  // namespace gpumem::preload
