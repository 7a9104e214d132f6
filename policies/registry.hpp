/// What stands behind the registry's public functions (gpumem/policy.hpp).
#pragma once

#include <vector>

#include "gpumem/policy.hpp"

namespace gpumem {

struct registered_policy {
  policy_entry entry;
  policy_factory make;
};

/// All of them or, where one cannot be, none.
status add_policies(std::vector<registered_policy> rows);

/// Loads GPUMEM_POLICY_LIBRARY, where the variable is set and that library was not loaded before.
status load_named_policy_library();

}  // namespace gpumem
