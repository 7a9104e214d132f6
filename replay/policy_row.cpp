/// Splits the text and passes every value to `settings::set`, so that the bench needs no list of settings.
#include "policy_row.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "gpumem/policy.hpp"
#include "text.hpp"

namespace gpumem::bench {
namespace {

constexpr unsigned most_tenants = 64;

status parse_tenants(std::string_view text, unsigned& tenants) {
  tenants = whole_number<unsigned>(text).value_or(0);
  if (tenants >= 1 && tenants <= most_tenants) return {};
  return {errc::bad_setting,
          fmt::format("tenants={}: expected a whole number from 1 to {}", printable(text), most_tenants)};
}

bool is_option(std::string_view name) {
  const std::vector<option_row>& all = option_table();
  return name == "policy" ||
         std::any_of(all.begin(), all.end(), [name](const option_row& row) { return row.option == name; });
}

status apply_part(std::string_view part, policy_row& row, std::set<std::string, std::less<>>& named) {
  // A parameter's `=` follows the policy's `:`.
  const std::size_t equals = named.empty() && part.find(':') < part.find('=') ? std::string_view::npos : part.find('=');
  const std::string_view option = equals == std::string_view::npos ? "policy" : part.substr(0, equals);
  const std::string_view value = equals == std::string_view::npos ? part : part.substr(equals + 1);
  if (equals == std::string_view::npos && !named.empty()) {
    return {errc::bad_setting, fmt::format("'{}' has no '=', expected option=value", printable(part))};
  }
  const bool has_parameters = row.config.policy.find(':') != std::string::npos && named.contains("policy");
  if (has_parameters && option != "tenants" && !is_option(option)) {  // another parameter
    row.config.policy += fmt::format(",{}", part);
    return {};
  }
  if (!named.emplace(option).second) return {errc::bad_setting, fmt::format("{} is named twice", printable(option))};
  if (option == "trace" || option == "stats") {
    return {errc::bad_setting, fmt::format("{} has no meaning in a row of the bench", option)};
  }
  if (option == "tenants") return parse_tenants(value, row.tenants);
  return row.config.set(option, value);
}

status check_row(policy_row& row, bool tenants_named) {
  const auto entry = find_policy(row.config.policy);
  if (!entry) return entry.why();
  row.takes_everything = entry->needs.everything;
  if (row.config.pools.size() > 1) {
    if (tenants_named) {
      return {errc::bad_setting, "tenants and several pools exclude each other: each pool has a tenant of its own"};
    }
    row.tenants = static_cast<unsigned>(row.config.pools.size());
  }
  return {};
}

}  // namespace

result<settings> settings_from(const environment& variables) {
  settings parsed;
  std::vector<std::string> problems;
  const status applied = parsed.apply(variables, &problems);
  if (!applied) return applied;
  if (!problems.empty()) return status{errc::bad_setting, problems.front()};
  parsed.trace_path.clear();
  parsed.stats_path.clear();
  return parsed;
}

result<policy_row> parse_policy_row(std::string_view text, const settings& defaults, std::string_view limit) {
  policy_row row;
  row.text = text;
  row.config = defaults;
  std::set<std::string, std::less<>> named;
  status parsed;
  for (std::string_view rest = text; parsed.ok();) {
    const std::size_t comma = rest.find(',');
    parsed = apply_part(rest.substr(0, comma), row, named);
    if (comma == std::string_view::npos) break;
    rest.remove_prefix(comma + 1);
  }
  if (parsed.ok() && !limit.empty() && !named.contains("limit")) parsed = row.config.set("limit", limit);
  if (parsed.ok()) parsed = check_row(row, named.contains("tenants"));
  if (!parsed.ok()) return status{parsed.code(), fmt::format("policy '{}': {}", printable(text), parsed.message())};
  return row;
}

std::vector<std::string> default_rows(const settings& defaults, std::string_view limit, std::string_view share) {
  if (defaults.source("policy") == setting_source::environment) return {defaults.policy};
  std::vector<std::string> rows;
  for (const policy_entry& each : known_policies()) {
    const bool add_limit = each.needs.limit && limit.empty() && !defaults.limit;
    const bool add_pools = each.needs.pools && defaults.pools.empty();
    rows.push_back(fmt::format("{}{}{}{}", each.name, add_limit ? ",limit=" : "", add_limit ? share : "",
                               add_pools ? ",pools=50%+50%" : ""));
  }
  return rows;
}

}  // namespace gpumem::bench
