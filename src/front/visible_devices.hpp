// The GPUs of this machine that a program gets when it names none.
#pragma once

#include <memory>
#include <vector>

#include "gpumem/device.hpp"
#include "gpumem/status.hpp"

namespace gpumem {

/// Every GPU that the driver shows to this process, in its order; takes no memory of them. `device_error` where there
/// is no driver or no GPU.
result<std::vector<std::unique_ptr<device>>> open_visible_devices();

}  // namespace gpumem
