/// Presents a shared library's policy as a `policy`, and clamps its answers to the range that the pool requires.
#pragma once

#include "gpumem/policy_library.h"
#include "registry.hpp"

namespace gpumem {

/// The library's rows for the registry. `bad_setting` if the table is of another version or incomplete; messages begin
/// with the error, without the file's name. The table must live as long as the process.
result<std::vector<registered_policy>> policies_of_table(const gpumem_policy_library* table);

}  // namespace gpumem
