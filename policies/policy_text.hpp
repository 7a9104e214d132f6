/// A policy as users name it: `growth`, `planned:renew`, `expandable:slack=5%`.
#pragma once

#include <string_view>

#include "gpumem/policy.hpp"

namespace gpumem {

/// The parts of a policy's text, as views into it.
struct policy_text {
  std::string_view name;
  std::string_view parameters;  ///< the text after the first `:`
};
[[nodiscard]] policy_text split_policy(std::string_view text) noexcept;

/// Whether `name` may be a policy in `GPUMEM_POOLS=train:8GiB:name` and in `name,limit=4GiB`.
[[nodiscard]] bool is_policy_name(std::string_view name) noexcept;

/// `bad_setting` if the policy does not declare a given parameter, or refuses its value.
[[nodiscard]] status check_parameters(const policy_entry& policy, const policy_parameters& given);

}  // namespace gpumem
