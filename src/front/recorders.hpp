/// Which recorders a pool has: of its trace (GPUMEM_TRACE), and of its plan where its policy makes one.
#pragma once

#include <memory>
#include <vector>

#include "allocation_recorder.hpp"
#include "gpumem/policy.hpp"
#include "gpumem/settings.hpp"

namespace gpumem {

using recorder_list = std::vector<std::unique_ptr<allocation_recorder>>;

/// Each with a file of the pool's own, which `logical` numbers. `with` holds the device's own overrides.
/// `bad_setting` where a file cannot be written.
result<recorder_list> open_recorders(const settings& with, const policy_entry& serves, int logical);

}  // namespace gpumem
