/// The built-in policies listed in policies.def. Each policy's file defines a function that returns its row.
#pragma once

#include "gpumem/policy.hpp"

namespace gpumem {

struct built_in_policy {
  policy_entry entry;
  policy_factory make;
};

#define POLICY(function) built_in_policy function();
#include "policies.def"
#undef POLICY

}  // namespace gpumem
