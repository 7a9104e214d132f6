// `gpumem devices`: every GPU of the machine and who uses it.
#pragma once

#include "options.hpp"

namespace gpumem::cli {

int show_devices(const devices_options& options);

}  // namespace gpumem::cli
