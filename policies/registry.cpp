/// The table of policies: first the built-in policies, then those of GPUMEM_POLICY_LIBRARY and of the program.
///
/// One lock guards the table and is held for table access only. Factories run without it and may use the registry. A
/// factory is called once at registration, for the policy's `needs`, and then for each pool. The table is never
/// destroyed, so that a program may allocate while it exits.
#include "registry.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <exception>
#include <new>
#include <utility>

#include "assign_or_return.hpp"
#include "built_in.hpp"
#include "checked_mutex.hpp"
#include "policy_text.hpp"
#include "text.hpp"

namespace gpumem {
namespace {

result<std::unique_ptr<policy>> made_by(const registered_policy& row, const policy_setup& setup) {
  std::unique_ptr<policy> made;
  try {
    made = row.make(setup);
  } catch (const std::bad_alloc&) {
    return status::of_current_exception();
  } catch (const std::exception& e) {
    return status{errc::bad_setting,
                  fmt::format("policy '{}' could not be made: {}", row.entry.name, printable(e.what(), 256))};
  } catch (...) {
    return status{errc::bad_setting, fmt::format("policy '{}' could not be made: its factory threw", row.entry.name)};
  }
  if (!made) {
    return status{errc::bad_setting,
                  fmt::format("policy '{}' could not be made: its factory gave none", row.entry.name)};
  }
  return made;
}

/// Returns the policy's `needs` with these parameters, or the defaults if the policy cannot be made (opening a pool
/// then fails). Fails only if the host has no memory.
result<policy_needs> needs_of(const registered_policy& row, const policy_parameters& parameters) {
  const result<std::unique_ptr<policy>> asked = made_by(row, {.parameters = parameters});
  if (asked.code() == errc::host_failure) return asked.why();
  if (!asked) return policy_needs{};
  try {
    return (*asked)->needs();
  } catch (const std::bad_alloc&) {
    return status::of_current_exception();
  } catch (...) {
    return policy_needs{};
  }
}

struct registry {
  checked_mutex lock;
  std::vector<registered_policy> rows GPUMEM_GUARDED_BY(lock);
};

std::vector<registered_policy> built_in_rows() {
  std::vector<registered_policy> rows;
  for (built_in_policy (*const function)() : {
#define POLICY(function) &function,
#include "policies.def"
#undef POLICY
       }) {
    built_in_policy row = function();
    rows.push_back({std::move(row.entry), std::move(row.make)});
    result<policy_needs> needs = needs_of(rows.back(), {});
    if (!needs) throw std::bad_alloc{};  // the next use tries again
    rows.back().entry.needs = *std::move(needs);
  }
  return rows;
}

registry& the_registry() {
  static registry& only = *new registry{.lock = {}, .rows = built_in_rows()};
  return only;
}

std::vector<registered_policy>::const_iterator find(const registry& table, std::string_view name)
    GPUMEM_REQUIRES(table.lock) {
  return std::find_if(table.rows.begin(), table.rows.end(),
                      [&](const registered_policy& row) { return row.entry.name == name; });
}

status unknown(const registry& table, std::string_view name) GPUMEM_REQUIRES(table.lock) {
  std::string known;
  for (const registered_policy& r : table.rows) known += (known.empty() ? "" : ", ") + r.entry.name;
  return {errc::bad_setting, fmt::format("policy '{}' is unknown; expected one of {}", name, known)};
}

/// Returns the row of the policy named by `text`.
result<registered_policy> row_of(std::string_view text) {
  if (status loaded = load_named_policy_library(); !loaded) return loaded;
  registry& table = the_registry();
  const mutex_lock guard{table.lock};
  const auto found = find(table, split_policy(text).name);
  if (found == table.rows.end()) return unknown(table, text);
  return *found;
}

status usable(const registered_policy& row) {
  const std::string& name = row.entry.name;
  if (!is_policy_name(name)) {
    return {errc::bad_setting,
            fmt::format("policy name '{}' cannot be used; expected letters, digits, _ - .", printable(name))};
  }
  for (const policy_parameter& p : row.entry.parameters) {
    if (is_policy_name(p.name)) continue;
    return {errc::bad_setting,
            fmt::format("policy '{}': parameter '{}' cannot be used; expected letters, digits, _ - .", name,
                        printable(p.name))};
  }
  if (!row.make) return {errc::bad_setting, fmt::format("policy '{}' has no factory; expected a function", name)};
  return {};
}

}  // namespace

status add_policies(std::vector<registered_policy> rows) {
  for (registered_policy& row : rows) {
    if (status good = usable(row); !good) return good;
    ASSIGN_OR_RETURN(row.entry.needs, needs_of(row, {}));
  }
  registry& table = the_registry();
  const mutex_lock guard{table.lock};
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const std::string& name = rows[i].entry.name;
    const bool twice = std::any_of(rows.begin(), rows.begin() + static_cast<std::ptrdiff_t>(i),
                                   [&name](const registered_policy& row) { return row.entry.name == name; });
    if (twice || find(table, name) != table.rows.end()) {
      return {errc::bad_setting, fmt::format("policy '{}' exists already; expected a name of its own", name)};
    }
  }
  for (registered_policy& row : rows) table.rows.push_back(std::move(row));
  return {};
}

status register_policy(policy_entry entry, policy_factory make) {
  return add_policies({{std::move(entry), std::move(make)}});
}

status register_policy(std::string name, std::string summary, policy_factory make) {
  return register_policy(policy_entry{.name = std::move(name), .summary = std::move(summary)}, std::move(make));
}

std::vector<policy_entry> known_policies() {
  static_cast<void>(load_named_policy_library());  // find_policy reports the error
  registry& table = the_registry();
  const mutex_lock guard{table.lock};
  std::vector<policy_entry> entries;
  entries.reserve(table.rows.size());
  for (const registered_policy& row : table.rows) entries.push_back(row.entry);
  return entries;
}

result<policy_entry> find_policy(std::string_view text) {
  ASSIGN_OR_RETURN(auto row, row_of(text));
  ASSIGN_OR_RETURN(const auto parameters, parameters_in(text));
  if (status good = check_parameters(row.entry, parameters); !good) return good;
  if (!parameters.empty()) {
    ASSIGN_OR_RETURN(row.entry.needs, needs_of(row, parameters));
  }
  return std::move(row.entry);
}

result<std::unique_ptr<policy>> make_policy(std::string_view text, const policy_setup& setup) {
  ASSIGN_OR_RETURN(const auto row, row_of(text));
  ASSIGN_OR_RETURN(const auto named, parameters_in(text));
  policy_setup merged = setup;
  merged.parameters.insert(named.begin(), named.end());
  if (status good = check_parameters(row.entry, merged.parameters); !good) return good;
  return made_by(row, merged);
}

}  // namespace gpumem
