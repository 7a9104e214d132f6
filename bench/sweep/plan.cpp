#include "plan.hpp"

#include <fmt/format.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <numeric>
#include <optional>

#include "binary_trace.hpp"
#include "json_line.hpp"
#include "log.hpp"
#include "parallel.hpp"
#include "policy_row.hpp"
#include "text.hpp"

namespace gpumem::bench::sweep {
namespace {

using json = nlohmann::ordered_json;

hash128 parts_of(XXH128_hash_t hash) { return {hash.high64, hash.low64}; }
hash128 hash_of(std::string_view text) { return parts_of(XXH3_128bits(text.data(), text.size())); }

std::optional<hash128> hash_of_file(const std::string& path) {
  const std::unique_ptr<std::FILE, int (*)(std::FILE*)> file{std::fopen(path.c_str(), "rb"), std::fclose};
  const std::unique_ptr<XXH3_state_t, XXH_errorcode (*)(XXH3_state_t*)> state{XXH3_createState(), XXH3_freeState};
  if (file == nullptr || state == nullptr || XXH3_128bits_reset(state.get()) != XXH_OK) return std::nullopt;
  std::vector<char> piece(std::size_t{1} << 18);
  for (std::size_t got = 0; (got = std::fread(piece.data(), 1, piece.size(), file.get())) > 0;) {
    if (XXH3_128bits_update(state.get(), piece.data(), got) != XXH_OK) return std::nullopt;
  }
  if (std::ferror(file.get()) != 0) return std::nullopt;
  return parts_of(XXH3_128bits_digest(state.get()));
}

/// Estimated from the file's size: a row of CSV has some 45 bytes, compressed 6.
double estimated_ops(const std::string& path) {
  std::error_code why;
  const auto bytes = std::filesystem::file_size(path, why);
  if (why) return 1;
  if (const auto ops = ops_of_binary_trace(path)) return static_cast<double>(*ops);
  const double a_row = path.ends_with(".csv") ? 45 : path.ends_with(".gz") ? 6 : 1;
  return static_cast<double>(bytes) / a_row;
}

std::string short_name(const std::string& path) {
  std::string name = std::filesystem::path{path}.filename().string();
  for (const std::string_view ending : {".gz", ".csv", ".gmtrace"}) {
    if (name.size() > ending.size() && name.ends_with(ending)) name.resize(name.size() - ending.size());
  }
  return name;
}

/// Uses paths as names for files that have the same name.
void name_sources(std::vector<trace_source>& all) {
  std::map<std::string, unsigned> times;
  for (const trace_source& each : all) ++times[each.name];
  for (trace_source& each : all) {
    if (times[each.name] > 1) each.name = each.path;
  }
}

/// A plan costs its step limit; a search for a capacity replays about a hundred times.
double estimated_cost(const manifest& definition, const trace_source& source, const policy_row& row) {
  double cost = source.ops * row.tenants * (definition.mode == sweep_mode::fit ? 100 : 2);
  if (row.config.policy == "planned")
    cost += std::min(static_cast<double>(definition.plan_steps) / 10, source.ops * 1000);
  return cost;
}

json settings_of(const sweep_plan& plan, const unit& work) {
  return {
      {"mode", to_string(plan.definition.mode)},        {"policy", plan.definition.policies[work.policy]},
      {"device", plan.definition.devices[work.device]}, {"capacity", plan.definition.capacities[work.capacity].text},
      {"seed", plan.definition.seeds[work.seed]},       {"lag_ns", plan.definition.lag_ns},
      {"shared_use", plan.definition.shared_use},       {"plan_steps", plan.definition.plan_steps}};
}

}  // namespace

std::string hex(const hash128& hash) { return fmt::format("{:016x}{:016x}", hash[0], hash[1]); }

result<std::string> program_version(const std::string& program) {
  const auto hash = hash_of_file(program);
  if (!hash) return status{errc::invalid_argument, fmt::format("{}: cannot be read", printable(program, 4096))};
  return fmt::format("{}-{:016x}", GPUMEM_VERSION_TEXT, (*hash)[0]);
}

std::vector<trace_source> find_sources(const manifest& definition, unsigned jobs) {
  std::vector<trace_source> all(definition.traces.size());
  (void)run_parallel(all.size(), jobs, [&](std::size_t index) -> status {
    const std::string& path = definition.traces[index];
    const auto content = hash_of_file(path);
    all[index] = {path, short_name(path), false, content ? *content : hash_of("unreadable " + path),
                  estimated_ops(path)};
    return {};
  }).ok();
  std::map<hash128, std::string> seen;
  std::erase_if(all, [&](const trace_source& each) {
    const auto [first, added] = seen.emplace(each.content, each.path);
    if (!added) log_line(fmt::format("{} has the content of {} and is counted once", each.path, first->second));
    return !added;
  });
  for (const std::string& text : definition.workloads)
    all.push_back({text, text, true, hash_of("workload " + text), 100'000});
  name_sources(all);
  return all;
}

sweep_plan make_plan(manifest definition, std::string version, std::vector<trace_source> traces) {
  sweep_plan plan{std::move(definition), std::move(version), std::move(traces), {}, {}};
  std::vector<policy_row> rows;
  for (const std::string& text : plan.definition.policies) rows.push_back(*parse_policy_row(text, settings{}, ""));
  for (std::size_t t = 0; t < plan.traces.size(); ++t) {
    for (std::size_t d = 0; d < plan.definition.devices.size(); ++d) {
      for (std::size_t c = 0; c < plan.definition.capacities.size(); ++c) {
        for (std::size_t s = 0; s < plan.definition.seeds.size(); ++s) {
          for (std::size_t p = 0; p < rows.size(); ++p) {
            unit each{{},
                      estimated_cost(plan.definition, plan.traces[t], rows[p]),
                      static_cast<std::uint32_t>(t),
                      static_cast<std::uint16_t>(p),
                      static_cast<std::uint16_t>(d),
                      static_cast<std::uint16_t>(c),
                      static_cast<std::uint16_t>(s)};
            each.key = hash_of(fmt::format("gpumem sweep 1\n{}\n{}\n{}", plan.version, hex(plan.traces[t].content),
                                           json_line(settings_of(plan, each))));
            plan.units.push_back(each);
          }
        }
      }
    }
  }
  plan.order.resize(plan.units.size());
  std::iota(plan.order.begin(), plan.order.end(), std::uint32_t{0});
  std::stable_sort(plan.order.begin(), plan.order.end(),
                   [&](std::uint32_t lhs, std::uint32_t rhs) { return plan.units[lhs].cost > plan.units[rhs].cost; });
  return plan;
}

std::string row_head(const sweep_plan& plan, const unit& work) {
  const json head{{"key", hex(work.key)},
                  {"policy", plan.definition.policies[work.policy]},
                  {"device", plan.definition.devices[work.device]},
                  {"capacity", plan.definition.capacities[work.capacity].text},
                  {"seed", plan.definition.seeds[work.seed]},
                  {"mode", to_string(plan.definition.mode)},
                  {"simulated", true}};
  std::string text = json_line(head);
  text.pop_back();
  return text;
}

std::string request_of(const sweep_plan& plan, const unit& work) {
  const trace_source& source = plan.traces[work.trace];
  json request = settings_of(plan, work);
  request["trace"] = source.path;
  request["name"] = source.name;
  request["workload"] = source.workload;
  request["head"] = row_head(plan, work);
  return json_line(request);
}

std::string describe(const sweep_plan& plan, const unit& work) {
  const std::string& capacity = plan.definition.capacities[work.capacity].text;
  return fmt::format("{} under {} on {}{}{}, seed {}", plan.traces[work.trace].name,
                     plan.definition.policies[work.policy], plan.definition.devices[work.device],
                     capacity.empty() ? "" : ", capacity ", capacity, plan.definition.seeds[work.seed]);
}

}  // namespace gpumem::bench::sweep
