#include "document_tables.hpp"

#include <fmt/format.h>

#include <vector>

#include "gpumem/policy.hpp"
#include "gpumem/settings.hpp"

namespace gpumem::tools {
namespace {

std::vector<policy_entry> documented_policies() {
  std::vector<policy_entry> policies = known_policies();
  std::erase_if(policies, [](const policy_entry& policy) { return policy.takes.empty(); });
  return policies;
}

}  // namespace

std::string option_table() {
  std::string text = "| variable | values | default | per device | meaning |\n|---|---|---|---|---|\n";
  for (const option_row& row : gpumem::option_table()) {
    text += fmt::format("| `{}` | {} | {} | {} | {} |\n", row.variable, row.values, row.default_text,
                        row.per_device ? "yes" : "no", row.help);
  }
  return text;
}

std::string policy_table() {
  std::string text = "| `GPUMEM_POLICY` | takes | gives back | choose it when |\n|---|---|---|---|\n";
  for (const policy_entry& policy : documented_policies()) {
    text += fmt::format("| `{}` | {} | {} | {} |\n", policy.name, policy.takes, policy.gives_back, policy.choose_when);
  }
  return text;
}

std::string policy_parameter_table() {
  std::string text = "| parameter | values | default | meaning |\n|---|---|---|---|\n";
  for (const policy_entry& policy : documented_policies()) {
    for (const policy_parameter& parameter : policy.parameters) {
      const bool is_word = parameter.values.empty();
      text += fmt::format("| `{}:{}` | {} | {} | {} |\n", policy.name, parameter.name,
                          is_word ? "the word alone" : parameter.values, is_word ? "no" : parameter.default_text,
                          parameter.help);
    }
  }
  return text;
}

}  // namespace gpumem::tools
