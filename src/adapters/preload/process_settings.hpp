// The settings of a program that nobody changed: read from the environment once, at its first call of the driver, and
// the same for every file of the shim. Any thread.
#pragma once

#include <optional>

#include "gpumem/settings.hpp"
#include "gpumem/status.hpp"

namespace gpumem::preload {

struct process_settings {
  status usable;  ///< of a setting that cannot be used: then the program gets no device memory at all
  settings options;
};

/// Logs, at the first call, every variable that is wrong without being an error.
const process_settings& settings_of_process();

/// What a device's limit is on. `on_device` are its own settings, `settings::for_device`.
limit_scope scope_of(const settings& on_device) noexcept;

/// Whether a limit, pools or a group are set for any device. Where gpumem cannot serve such a program, it gets no
/// memory; one without any is left to the driver.
bool guards_memory() noexcept;

/// Whether a limit or a group counts what the program takes beside gpumem, on any device.
bool limits_process() noexcept;

/// The limit of one device on the whole process; none where there is none.
std::optional<byte_limit> process_limit_of(int ordinal);

}  // namespace gpumem::preload
