/// The table of policies: the built-in ones from the first use on, then what the program registers.
///
/// One lock, held for table access only: a factory runs without it and may use the registry itself.
/// The table is never destroyed, so that a program may allocate while it exits.
#include <fmt/format.h>

#include <algorithm>
#include <exception>
#include <mutex>
#include <utility>

#include "built_in.hpp"
#include "gpumem/policy.hpp"

namespace gpumem {
namespace {

struct row {
  policy_entry entry;
  policy_factory make;
};

struct registry {
  std::mutex lock;
  std::vector<row> rows;
};

std::vector<row> built_in_rows() {
  std::vector<row> rows;
  rows.push_back(
      {{.name = "growth",
        .summary = "on demand, in steps that double and then are a quarter of the pool; gives back when asked"},
       make_growth});
  rows.push_back(
      {{.name = "hard_cap", .summary = "as growth, with a limit that must be set", .needs_limit = true}, make_growth});
  rows.push_back(
      {{.name = "multi_pool", .summary = "as growth, in pools that must be set", .needs_pools = true}, make_growth});
  rows.push_back(
      {{.name = "grab_all", .summary = "everything allowed, at first use; never gives back", .leaves_reserve = true},
       make_grab_all});
  rows.push_back({{.name = "caching", .summary = "in segments per size class; gives idle ones back under pressure"},
                  make_caching});
  rows.push_back({{.name = "expandable",
                   .summary = "page by page behind reserved addresses; idle pages serve elsewhere before new ones do",
                   .needs_pages = true},
                  make_expandable});
  rows.push_back({{.name = "planned",
                   .summary = "what a plan says (GPUMEM_PLAN), at the places that it says; as growth beside it",
                   .follows_plan = true},
                  make_planned});
  rows.push_back({{.name = "planned:record",
                   .summary = "growth, for one run that is recorded: its plan is written (GPUMEM_PLAN) when it ends",
                   .records_plan = true},
                  make_growth});
  rows.push_back({{.name = "planned:renew",
                   .summary = "planned, or growth while there is no plan; a run that departs leaves a new one",
                   .follows_plan = true,
                   .records_plan = true},
                  make_planned});
  return rows;
}

registry& the_registry() {
  static registry& only = *new registry{.lock = {}, .rows = built_in_rows()};
  return only;
}

std::vector<row>::const_iterator find(const registry& in, std::string_view name) {
  return std::find_if(in.rows.begin(), in.rows.end(), [&](const row& r) { return r.entry.name == name; });
}

/// Requires the lock.
status unknown(const registry& in, std::string_view name) {
  std::string known;
  for (const row& r : in.rows) known += (known.empty() ? "" : ", ") + r.entry.name;
  return {errc::bad_setting, fmt::format("policy '{}' is unknown; known: {}", name, known)};
}

/// Only what can stand in `GPUMEM_POOLS=train:8GiB:name` and in `name,limit=4GiB`.
bool is_usable_name(std::string_view name) noexcept {
  return !name.empty() && std::all_of(name.begin(), name.end(), [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' || c == '-' ||
           c == '.';
  });
}

}  // namespace

status register_policy(std::string name, std::string summary, policy_factory make) {
  if (!is_usable_name(name)) {
    return {errc::bad_setting, fmt::format("policy name '{}' cannot be used; expected letters, digits, _ - .", name)};
  }
  if (!make) return {errc::bad_setting, fmt::format("policy '{}' has no factory; expected a function", name)};

  registry& in = the_registry();
  const std::lock_guard guard{in.lock};
  if (find(in, name) != in.rows.end()) {
    return {errc::bad_setting, fmt::format("policy '{}' exists already; expected a name of its own", name)};
  }
  in.rows.push_back({{.name = std::move(name), .summary = std::move(summary)}, std::move(make)});
  return {};
}

std::vector<policy_entry> known_policies() {
  registry& in = the_registry();
  const std::lock_guard guard{in.lock};
  std::vector<policy_entry> out;
  out.reserve(in.rows.size());
  for (const row& r : in.rows) {
    if (!r.entry.records_plan) out.push_back(r.entry);
  }
  return out;
}

result<policy_entry> find_policy(std::string_view name) {
  registry& in = the_registry();
  const std::lock_guard guard{in.lock};
  const auto found = find(in, name);
  if (found == in.rows.end()) return unknown(in, name);
  return found->entry;
}

result<std::unique_ptr<policy>> make_policy(std::string_view name, const policy_setup& setup) {
  policy_factory make;
  {
    registry& in = the_registry();
    const std::lock_guard guard{in.lock};
    const auto found = find(in, name);
    if (found == in.rows.end()) return unknown(in, name);
    make = found->make;
  }
  std::unique_ptr<policy> made;
  try {
    made = make(setup);
  } catch (const std::exception& e) {
    return status{errc::bad_setting, fmt::format("policy '{}' could not be made: {}", name, e.what())};
  }
  if (!made)
    return status{errc::bad_setting, fmt::format("policy '{}' could not be made: its factory gave none", name)};
  return made;
}

}  // namespace gpumem
