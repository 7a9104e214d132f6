/// Generates the policy tables of the documents from the registry's built-in rows.
#include <fmt/format.h>

#include "built_in.hpp"

namespace gpumem {
namespace {

std::vector<policy_entry> built_in_entries() {
  return {
#define POLICY(function) function().entry,
#include "policies.def"
#undef POLICY
  };
}

}  // namespace

std::string policy_table_markdown() {
  std::string text = "| `GPUMEM_POLICY` | takes | gives back | choose it when |\n|---|---|---|---|\n";
  for (const policy_entry& e : built_in_entries()) {
    text += fmt::format("| `{}` | {} | {} | {} |\n", e.name, e.takes, e.gives_back, e.choose_when);
  }
  return text;
}

std::string policy_parameter_table_markdown() {
  std::string text = "| parameter | values | default | meaning |\n|---|---|---|---|\n";
  for (const policy_entry& e : built_in_entries()) {
    for (const policy_parameter& p : e.parameters) {
      text +=
          fmt::format("| `{}:{}` | {} | {} | {} |\n", e.name, p.name, p.values.empty() ? "the word alone" : p.values,
                      p.values.empty() ? "no" : p.default_text, p.help);
    }
  }
  return text;
}

}  // namespace gpumem
