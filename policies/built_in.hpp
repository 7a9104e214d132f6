/// The built-in policies listed in policies.def. Each policy's file defines a function that returns its row.
#pragma once

#include "gpumem/policy.hpp"
#include "growth_rule.hpp"

namespace gpumem {

/// The rule of a pool with that setup, and the parameter that it reads.
growth_rule rule_of(const policy_setup& setup, std::uint64_t default_rate = growth_rule::default_exchange_rate);
policy_parameter exchange_rate_parameter(const char* more_effects,
                                         std::uint64_t default_rate = growth_rule::default_exchange_rate);

struct built_in_policy {
  policy_entry entry;
  policy_factory make;
};

#define POLICY(function) built_in_policy function();
#include "policies.def"
#undef POLICY

}  // namespace gpumem
