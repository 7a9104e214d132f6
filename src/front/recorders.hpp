/// Creates a pool's recorders: of its trace (GPUMEM_TRACE), and of its plan if its policy records one.
#pragma once

#include <memory>
#include <vector>

#include "allocation_recorder.hpp"
#include "gpumem/policy.hpp"
#include "gpumem/settings.hpp"

namespace gpumem {

using recorder_list = std::vector<std::unique_ptr<allocation_recorder>>;

/// Each recorder has its own file, numbered by `logical`. `with` includes the device's overrides. `bad_setting` if a
/// file cannot be written.
result<recorder_list> open_recorders(const settings& with, const policy_entry& serves, int logical);

}  // namespace gpumem
