#include "policy_text.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <string>

#include "text.hpp"

namespace gpumem {
namespace {

/// Lists the accepted forms of the policy's parameters: `slack=VALUE, renew`.
std::string forms_of(const policy_entry& policy) {
  std::string forms;
  for (const policy_parameter& p : policy.parameters) {
    forms += fmt::format("{}{}{}", forms.empty() ? "" : ", ", p.name, p.values.empty() ? "" : "=VALUE");
  }
  return forms.empty() ? "none" : forms;
}

status refused(const policy_entry& policy, const std::string& name, const std::string& value, std::string_view why) {
  return {errc::bad_setting, fmt::format("policy {}:{}{}{}: {}", policy.name, printable(name), value.empty() ? "" : "=",
                                         printable(value), why)};
}

}  // namespace

policy_text split_policy(std::string_view text) noexcept {
  const std::size_t colon = text.find(':');
  if (colon == std::string_view::npos) return {text, {}};
  return {text.substr(0, colon), text.substr(colon + 1)};
}

bool is_policy_name(std::string_view name) noexcept {
  return !name.empty() && std::all_of(name.begin(), name.end(), [](char character) {
    return (character >= 'a' && character <= 'z') || (character >= 'A' && character <= 'Z') ||
           (character >= '0' && character <= '9') || character == '_' || character == '-' || character == '.';
  });
}

result<policy_parameters> parameters_in(std::string_view text) {
  policy_parameters parameters;
  if (text.find(':') == std::string_view::npos) return parameters;
  const policy_text parts = split_policy(text);
  for (std::string_view rest = parts.parameters;;) {
    const std::size_t end = rest.find_first_of(",+");
    const std::string_view part = trimmed(rest.substr(0, end));
    const std::size_t equals = std::min(part.find('='), part.size());
    const std::string_view name = part.substr(0, equals);
    const std::string_view value = equals == part.size() ? std::string_view{} : part.substr(equals + 1);
    if (!is_policy_name(name) || (equals != part.size() && value.empty())) {
      return status{errc::bad_setting, fmt::format("policy {}: '{}' is no parameter; expected name=value or a word",
                                                   printable(text), printable(part))};
    }
    if (!parameters.emplace(name, value).second) {
      return status{errc::bad_setting, fmt::format("policy {}: {} is named twice", printable(text), name)};
    }
    if (end == std::string_view::npos) return parameters;
    rest.remove_prefix(end + 1);
  }
}

status check_parameters(const policy_entry& policy, const policy_parameters& given) {
  if (policy.own_parameters) return {};
  for (const auto& [name, value] : given) {
    const auto known =
        std::find_if(policy.parameters.begin(), policy.parameters.end(),
                     [&name = name](const policy_parameter& parameter) { return parameter.name == name; });
    if (known == policy.parameters.end()) {
      return refused(policy, name, value, fmt::format("unknown parameter; expected {}", forms_of(policy)));
    }
    if (value.empty() != known->values.empty()) {
      return refused(policy, name, value,
                     known->values.empty() ? std::string{"expected the word alone"}
                                           : fmt::format("expected {}={}", name, known->values));
    }
    if (!known->check || value.empty()) continue;
    if (status good = known->check(value, fmt::format("policy {}:{}", policy.name, name)); !good) return good;
  }
  return {};
}

}  // namespace gpumem
