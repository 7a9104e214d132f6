#include "trusted_path.hpp"

#include <sys/auxv.h>

#include <algorithm>
#include <cstdlib>

#include "log.hpp"
#include "text.hpp"

namespace gpumem {
namespace {

struct variable_form {
  std::string_view variable;
  std::string_view form;
};
constexpr variable_form forms[] = {
#define OPTION(field, NAME, form, reach, guard, values, default_text, help) {"GPUMEM_" #NAME, #form},
#include "options.def"
#undef OPTION
};

void log_ignored(std::string_view variable) {
  log_once(std::string{variable} + " is ignored: this program runs with more rights than its user has");
}

}  // namespace

bool runs_secure() noexcept { return getauxval(AT_SECURE) != 0; }

bool names_path(std::string_view variable) noexcept {
  return std::ranges::any_of(forms, [variable](const variable_form& each) {
    if (!each.form.ends_with("path") || !variable.starts_with(each.variable)) return false;
    const std::string_view rest = variable.substr(each.variable.size());
    return rest.empty() || (rest.starts_with('_') && whole_number<std::uint64_t>(rest.substr(1)));
  });
}

environment obeyed_variables(environment all, bool secure) {
  if (!secure) return all;
  std::erase_if(all, [](const auto& each) {
    if (!names_path(each.first)) return false;
    if (!each.second.empty()) log_ignored(printable(each.first));
    return true;
  });
  return all;
}

std::string trusted_path(const char* variable, bool secure) {
  const char* const value = std::getenv(variable);
  if (value == nullptr || *value == '\0') return {};
  if (!secure) return value;
  log_ignored(variable);
  return {};
}

}  // namespace gpumem
