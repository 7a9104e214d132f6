/// The makers of the built-in policies, for the registry's table; users reach them by name (gpumem/policy.hpp).
#pragma once

#include <memory>

#include "gpumem/policy.hpp"

namespace gpumem {

std::unique_ptr<policy> make_growth(const policy_setup& setup);
std::unique_ptr<policy> make_grab_all(const policy_setup& setup);
std::unique_ptr<policy> make_caching(const policy_setup& setup);
std::unique_ptr<policy> make_expandable(const policy_setup& setup);
std::unique_ptr<policy> make_planned(const policy_setup& setup);

}  // namespace gpumem
