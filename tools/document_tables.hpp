/// The tables of the documents in Markdown, generated from options.def and from the registry of policies.
#pragma once

#include <string>

namespace gpumem::tools {

/// docs/settings.md: a row for each variable.
std::string option_table();
/// README.md and docs/policies.md: a row for each policy that fills the columns of the table.
std::string policy_table();
/// docs/policies.md: a row for each parameter of these policies.
std::string policy_parameter_table();

}  // namespace gpumem::tools
