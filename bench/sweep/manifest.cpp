#include "manifest.hpp"

#include <fmt/format.h>
#include <glob.h>

#include <algorithm>
#include <filesystem>
#include <iterator>
#include <nlohmann/json.hpp>
#include <set>

#include "assign_or_return.hpp"
#include "bits.hpp"
#include "inputs.hpp"
#include "options.hpp"
#include "own_plans.hpp"
#include "policy_row.hpp"
#include "text.hpp"
#include "whole_file.hpp"
#include "workload.hpp"

namespace gpumem::bench::sweep {
namespace {

namespace fs = std::filesystem;
using json = nlohmann::ordered_json;

constexpr std::uint64_t default_plan_steps = 20'000'000;
constexpr std::size_t most_bytes = std::size_t{16} << 20;

status bad(std::string_view key, const std::string& why) {
  return {errc::bad_setting, key.empty() ? why : fmt::format("{}: {}", key, why)};
}

/// Reads a list of texts, or one text; empty if absent.
status read_texts(const json& object, const char* key, std::vector<std::string>& texts) {
  if (!object.contains(key)) return {};
  const json& value = object[key];
  const json list = value.is_string() ? json::array({value}) : value;
  if (!list.is_array() || list.empty()) return bad(key, "expected a list of texts with at least one");
  std::set<std::string> seen;
  for (const json& each : list) {
    if (!each.is_string()) return bad(key, fmt::format("{} is no text", printable(each.dump(), 80)));
    if (!seen.insert(each.get<std::string>()).second) return bad(key, fmt::format("{} is named twice", each.dump()));
    texts.push_back(each);
  }
  return {};
}

status read_seeds(const json& object, std::vector<std::uint64_t>& seeds) {
  seeds = {1};
  if (!object.contains("seeds")) return {};
  const json& list = object["seeds"];
  if (!list.is_array() || list.empty()) return bad("seeds", "expected a list of whole numbers with at least one");
  seeds.clear();
  for (const json& each : list) {
    if (!each.is_number_unsigned()) return bad("seeds", each.dump() + " is no whole number from 0");
    if (std::count(seeds.begin(), seeds.end(), each.get<std::uint64_t>()) != 0) {
      return bad("seeds", each.dump() + " is named twice");
    }
    seeds.push_back(each);
  }
  return {};
}

result<capacity> read_capacity(const std::string& text) {
  capacity parsed{text, {}};
  constexpr std::string_view of_live = "%live";
  if (text.ends_with(of_live)) {
    const std::string_view number = std::string_view{text}.substr(0, text.size() - of_live.size());
    const double percent = decimal_number(number).value_or(0);
    if (percent < 50 || percent > 10'000) {
      return bad("capacities", fmt::format("'{}': expected a share of the trace's peak live, 50%live to 10000%live",
                                           printable(text)));
    }
    parsed.share_of_peak_live = percent / 100;
    return parsed;
  }
  if (auto limit = parse_limit(text, "capacities"); !limit) return limit.why();
  return parsed;
}

/// The files of a glob or a folder, sorted.
result<std::vector<std::string>> files_of(const std::string& pattern, const fs::path& folder) {
  const std::string full = fs::path{pattern}.is_absolute() ? pattern : (folder / pattern).string();
  std::error_code ignored;
  if (fs::is_directory(full, ignored)) return traces_in(full);
  glob_t found{};
  std::vector<std::string> paths;
  if (::glob(full.c_str(), GLOB_MARK, nullptr, &found) == 0) {
    for (std::size_t i = 0; i < found.gl_pathc; ++i) {
      if (const std::string path = found.gl_pathv[i]; !path.ends_with('/')) paths.push_back(path);
    }
  }
  ::globfree(&found);
  if (paths.empty()) return bad("traces", fmt::format("'{}' matches no file", printable(pattern, 4096)));
  std::sort(paths.begin(), paths.end());
  return paths;
}

status find_traces(const std::vector<std::string>& patterns, const fs::path& folder, manifest& definition) {
  std::set<std::string> seen;
  for (const std::string& pattern : patterns) {
    ASSIGN_OR_RETURN(const auto files, files_of(pattern, folder));
    for (const std::string& file : files) {
      if (file.find('\n') != std::string::npos)
        return bad("traces", printable(file) + ": a name of more than one line");
      if (seen.insert(fs::path{file}.lexically_normal().string()).second) definition.traces.push_back(file);
    }
  }
  return {};
}

/// Opens each row once with ample memory, to find rows that can never start.
status try_policy(const manifest& definition, const std::string& text) {
  const settings none;
  ASSIGN_OR_RETURN(const auto row, parse_policy_row(text, none, ""));
  if (!row.config.plan_path.empty()) {
    return bad("policies", fmt::format("'{}': plan= has no meaning in a sweep, where each trace gets its own plan",
                                       printable(text)));
  }
  const bool needs_plan = needs_own_plan(row);
  for (const capacity& each : definition.capacities) {
    for (const std::string& device : definition.devices) {
      ASSIGN_OR_RETURN(const auto setup, setup_for(definition, device, 1));
      auto limited = parse_policy_row(text, none, each.limit_for(setup.device.capacity_bytes / 4));
      if (limited && definition.mode == sweep_mode::fit) limited = fit_row(*limited);
      if (!limited) return limited.why();
      if (needs_plan) continue;  // its plan is made when the unit runs
      if (auto opened = open_rig(setup.device, limited->config); !opened) {
        return bad(fmt::format("policies: '{}'", printable(text)), opened.why().message());
      }
    }
  }
  return {};
}

status refuse_unknown_keys(const json& all) {
  constexpr std::string_view known[] = {"traces", "workloads", "policies", "devices",    "capacities",
                                        "seeds",  "mode",      "lag",      "shared_use", "plan_steps"};
  for (const auto& [key, value] : all.items()) {
    if (std::find(std::begin(known), std::end(known), key) == std::end(known)) {
      return bad(
          "", fmt::format("'{}' is no key of a manifest; expected one of {}", printable(key), fmt::join(known, ", ")));
    }
  }
  return {};
}

status read_scalars(const json& all, manifest& definition) {
  for (const char* key : {"mode", "lag", "shared_use"}) {
    if (all.contains(key) && !all[key].is_string()) return bad(key, "expected a text");
  }
  const std::string mode = all.value("mode", std::string{"compare"});
  if (mode != "compare" && mode != "fit") {
    return bad("mode", fmt::format("'{}': expected compare or fit", printable(mode)));
  }
  definition.mode = mode == "fit" ? sweep_mode::fit : sweep_mode::compare;
  const auto lag = parse_lag(all.value("lag", std::string{"1ms"}));
  if (!lag) return bad("lag", lag.why().message());
  definition.lag_ns = *lag;
  const auto share = parse_share(all.value("shared_use", std::string{"0%"}));
  if (!share) return bad("shared_use", share.why().message());
  definition.shared_use = *share;
  definition.plan_steps = default_plan_steps;
  if (all.contains("plan_steps")) {
    const json& steps = all["plan_steps"];
    if (!steps.is_number_unsigned() || steps == 0) return bad("plan_steps", "expected a whole number from 1");
    definition.plan_steps = steps;
  }
  return {};
}

status read_lists(const json& all, const fs::path& folder, manifest& definition, std::vector<std::string>& patterns) {
  std::vector<std::string> capacities;
  if (status ok = read_texts(all, "traces", patterns); !ok) return ok;
  if (status ok = read_texts(all, "workloads", definition.workloads); !ok) return ok;
  if (status ok = read_texts(all, "policies", definition.policies); !ok) return ok;
  if (status ok = read_texts(all, "devices", definition.devices); !ok) return ok;
  if (status ok = read_texts(all, "capacities", capacities); !ok) return ok;
  if (status ok = read_seeds(all, definition.seeds); !ok) return ok;
  if (patterns.empty() && definition.workloads.empty())
    return bad("traces", "expected a list of files, folders or globs");
  if (definition.devices.empty()) definition.devices = {"sim"};
  for (const std::string& device : definition.devices) {
    if (device != "sim" && !device.starts_with("sim:")) {
      return bad("devices", fmt::format("'{}': a sweep is simulated; expected sim or sim:BYTES", printable(device)));
    }
    if (const auto setup = setup_for(definition, device, 1); !setup) return setup.why();
  }
  if (definition.mode == sweep_mode::fit && !capacities.empty()) {
    return bad("capacities", "mode fit varies the capacity; expected none");
  }
  for (const std::string& text : capacities) {
    ASSIGN_OR_RETURN(const auto read, read_capacity(text));
    definition.capacities.push_back(read);
  }
  if (definition.capacities.empty()) definition.capacities.emplace_back();
  if (definition.policies.empty()) {
    definition.policies = default_rows(settings{}, capacities.empty() ? "" : capacities.front(),
                                       definition.mode == sweep_mode::fit ? "100%" : "50%");
  }
  for (const std::string& workload : definition.workloads) {
    if (workload.find("seed=") != std::string::npos) {
      return bad("workloads", fmt::format("'{}': expected no seed, which \"seeds\" has", printable(workload)));
    }
    if (const auto made = make_workload(workload + (workload.find("ops=") == std::string::npos ? ",ops=1" : ""), 1);
        !made) {
      return made.why();
    }
  }
  return find_traces(patterns, folder, definition);
}

std::string one_form(const manifest& definition, const std::vector<std::string>& patterns) {
  json capacities = json::array();
  for (const capacity& each : definition.capacities) capacities.push_back(each.text);
  return json{{"traces", patterns},
              {"workloads", definition.workloads},
              {"policies", definition.policies},
              {"devices", definition.devices},
              {"capacities", capacities},
              {"seeds", definition.seeds},
              {"lag_ns", definition.lag_ns},
              {"shared_use", definition.shared_use},
              {"plan_steps", definition.plan_steps},
              {"mode", to_string(definition.mode)}}
      .dump(-1, ' ', true, json::error_handler_t::replace);
}

}  // namespace

std::string_view to_string(sweep_mode mode) noexcept { return mode == sweep_mode::fit ? "fit" : "compare"; }

std::string capacity::limit_for(std::uint64_t peak_live_bytes) const {
  if (!share_of_peak_live) return text;
  const double bytes = *share_of_peak_live * static_cast<double>(peak_live_bytes);
  return fmt::format("{}", round_up(static_cast<std::uint64_t>(bytes), 512));
}

result<replay_setup> setup_for(const manifest& definition, std::string_view device, std::uint64_t seed) {
  replay_setup setup;
  if (status parsed = parse_device(device, setup); !parsed) return parsed;
  setup.lag_ns = definition.lag_ns;
  setup.shared_use = definition.shared_use;
  setup.seed = seed;
  return setup;
}

result<manifest> read_manifest(const std::string& path) {
  const std::string shown = printable(path, 4096);
  std::error_code why;
  if (!fs::is_regular_file(path, why)) return bad(shown, "no such manifest; expected a JSON file");
  if (fs::file_size(path, why) > most_bytes) return bad(shown, "a manifest of more than 16 MiB");
  const auto text = read_file(path);
  if (!text) return bad(shown, "cannot be read");
  const json all = json::parse(*text, nullptr, false);
  if (all.is_discarded() || !all.is_object()) return bad(shown, "no JSON object");
  manifest definition;
  std::vector<std::string> patterns;
  status read = refuse_unknown_keys(all);
  if (read.ok()) read = read_scalars(all, definition);
  if (read.ok()) read = read_lists(all, fs::path{path}.parent_path(), definition, patterns);
  for (std::size_t i = 0; read.ok() && i < definition.policies.size(); ++i)
    read = try_policy(definition, definition.policies[i]);
  if (!read.ok()) return bad(shown, read.message());
  definition.text = one_form(definition, patterns);
  return definition;
}

}  // namespace gpumem::bench::sweep
