/// The internals of the registry's public functions (gpumem/policy.hpp).
#pragma once

#include <vector>

#include "gpumem/policy.hpp"

namespace gpumem {

struct registered_policy {
  policy_entry entry;
  policy_factory make;
};

/// Registers all rows, or none if one of them is refused.
status add_policies(std::vector<registered_policy> rows);

/// Loads GPUMEM_POLICY_LIBRARY, if the variable is set and the library is not loaded yet.
status load_named_policy_library();

}  // namespace gpumem
