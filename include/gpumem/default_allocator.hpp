/// The default allocator: all visible GPUs, with settings from the environment.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <string_view>

#include "gpumem/allocator.hpp"
#include "gpumem/export.h"

namespace GPUMEM_API gpumem {

/// The process's allocator, over every GPU that the driver shows, or those that GPUMEM_DEVICES chooses. The first call
/// opens it with the settings of GPUMEM_*; later calls return the same allocator, or the same error. It is never
/// destroyed, so that static destructors may free blocks. Any thread.
///
/// Opening it takes no GPU memory. Under `grab_all` the first allocation, on any device, takes all devices with this
/// policy, as TensorFlow does. A device that cannot be taken is logged, and its own first request tries again.
result<allocator*> default_allocator();

/// Sets an option of the default allocator, unless GPUMEM_* of the environment sets it. Without a value takes that
/// back. Has no effect once the allocator is open. Any thread.
status set_default_option(std::string_view name, std::optional<std::string_view> value);

/// Opens an allocator with the settings of GPUMEM_* over the program's own devices, which must outlive it. Ignores
/// GPUMEM_DEVICES. Logs a line for each unknown or bad variable; in strict mode the first one is the error.
result<std::unique_ptr<allocator>> open_allocator(std::span<device* const> devices);

}  // namespace gpumem
