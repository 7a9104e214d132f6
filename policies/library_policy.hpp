/// A policy of a shared library as a `policy`: the table's answers, brought into the range that the pool requires.
#pragma once

#include "gpumem/policy_library.h"
#include "registry.hpp"

namespace gpumem {

/// Rows for the registry. `bad_setting` where the table is not of this version, or lacks what it must have; messages
/// begin with what is wrong, without the file's name. The table must live as long as the process.
result<std::vector<registered_policy>> policies_of_table(const gpumem_policy_library* table);

}  // namespace gpumem
