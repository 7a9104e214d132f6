/// All claims: run, and told as a table, as JSON and for the page.
#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <optional>

#include "claim.hpp"
#include "claims_report.hpp"
#include "gpumem/settings.hpp"
#include "inputs.hpp"
#include "log.hpp"
#include "parallel.hpp"
#include "progress.hpp"
#include "text.hpp"

#ifndef GPUMEM_VERSION_TEXT
#error "bench/CMakeLists.txt defines GPUMEM_VERSION_TEXT"
#endif

namespace gpumem::bench {
namespace {

std::vector<claim> all_claims() {
  std::vector<claim> out;
  for (const auto& some : {grab_all_claims(), growth_claims(), limit_claims(), device_claims(), day_claims()}) {
    out.insert(out.end(), some.begin(), some.end());
  }
  return out;
}

result<std::vector<claim>> asked_for(const std::vector<std::string>& only) {
  std::vector<claim> all = all_claims();
  if (only.empty()) return all;
  std::vector<claim> out;
  for (const std::string& id : only) {
    const auto found = std::find_if(all.begin(), all.end(), [&](const claim& each) { return each.id == id; });
    if (found == all.end()) {
      std::string known;
      for (const claim& each : all) known += (known.empty() ? "" : ", ") + std::string{each.id};
      return status{errc::bad_setting, fmt::format("--only {}: expected one of {}", printable(id), known)};
    }
    out.push_back(*found);
  }
  return out;
}

std::string command_of(const claim& of, std::uint64_t seed) {
  return fmt::format("gpumem_bench claims --only {} --seed {}", of.id, seed);
}

/// `peak_live_bytes` as `peak live`.
std::string heading(std::string key) {
  for (const std::string_view unit : {"_bytes", "_us", "_percent"}) {
    if (!key.ends_with(unit)) continue;
    key.resize(key.size() - unit.size());
    if (unit == "_us") key += " (us)";
    if (unit == "_percent") key += " (%)";
  }
  std::replace(key.begin(), key.end(), '_', ' ');
  return key;
}

std::string cell(const std::string& key, const figures_json& value) {
  if (value.is_null()) return "more than 2.5 times live";
  if (value.is_string()) return value.get<std::string>();
  if (value.is_array()) {
    std::string out;
    for (const figures_json& each : value) out += (out.empty() ? "" : ", ") + cell(key, each);
    return out;
  }
  if (value.is_boolean()) return value.get<bool>() ? "yes" : "no";
  return key.ends_with("_bytes") ? format_bytes(value.get<std::uint64_t>()) : value.dump();
}

figures_json table_of(const figures_json& rows) {
  figures_json columns = figures_json::array();
  figures_json cells = figures_json::array();
  for (const auto& [key, value] : rows[0].items()) columns.push_back(heading(key));
  for (const figures_json& row : rows) {
    figures_json line = figures_json::array();
    for (const auto& [key, value] : row.items()) line.push_back(cell(key, value));
    cells.push_back(std::move(line));
  }
  return {{"columns", columns}, {"rows", cells}};
}

/// Broken at spaces so that no line is longer than 100 characters.
std::string wrapped(std::string_view text, std::string_view indent) {
  std::string out{indent};
  std::size_t column = 0;
  while (!text.empty()) {
    const std::size_t space = std::min(text.find(' '), text.size());
    if (column > 0 && column + 1 + space > 100) {
      out.append("\n").append(indent);
      column = 0;
    }
    if (column > 0) {
      out += ' ';
      ++column;
    }
    out.append(text.substr(0, space));
    column += space;
    text.remove_prefix(std::min(space + 1, text.size()));
  }
  return out + "\n";
}

class quiet_log {
 public:
  quiet_log() : former_{set_log_sink([](std::string_view) {})} {}
  ~quiet_log() { (void)set_log_sink(std::move(former_)); }
  quiet_log(const quiet_log&) = delete;
  quiet_log& operator=(const quiet_log&) = delete;

 private:
  log_sink former_;
};

}  // namespace

result<claims_report> run_claims(const options& with) {
  const auto claims = asked_for(with.only);
  if (!claims) return claims.why();
  claim_setup setup;
  setup.replay.seed = with.setup.seed;
  setup.replay.lag_ns = with.setup.lag_ns;
  const auto paths = traces_in(bundled_traces_folder());
  if (!paths) return paths.why();
  for (const std::string& path : *paths) {
    auto t = load_trace(path);
    if (!t) return t.why();
    setup.bundled.push_back(*std::move(t));
  }
  // The experiments run into limits on purpose; what the allocator says of that is no news.
  const quiet_log no_lines;
  std::vector<findings> found(claims->size());
  progress bar{claims->size(), with.quiet};
  status ran = run_parallel(claims->size(), with.jobs, [&](std::size_t i) -> status {
    auto got = (*claims)[i].run(setup);
    if (!got) return {got.code(), fmt::format("{}: {}", (*claims)[i].id, got.why().message())};
    found[i] = *std::move(got);
    bar.step((*claims)[i].id);
    return {};
  });
  if (!ran) return ran;

  claims_report out;
  figures_json list = figures_json::array();
  for (std::size_t i = 0; i < claims->size(); ++i) {
    const claim& each = (*claims)[i];
    list.push_back({{"id", each.id},
                    {"statement", each.statement},
                    {"source", each.source},
                    {"experiment", each.experiment},
                    {"expected", each.expected},
                    {"measured", found[i].measured},
                    {"verdict", to_string(found[i].outcome)},
                    {"command", command_of(each, with.setup.seed)},
                    {"figures", found[i].figures}});
    out.table += fmt::format("{}: {}\n{}{}\n", each.id, to_string(found[i].outcome), wrapped(each.statement, "  "),
                             wrapped(found[i].measured, "    "));
  }
  out.table += fmt::format(
      "All simulated, seed {}. --html shows figures, sources and set-ups; --only ID repeats one.\n", with.setup.seed);
  const figures_json all{
      {"schema", 1}, {"command", "claims"}, {"simulated", true}, {"seed", with.setup.seed}, {"claims", list}};
  out.json = all.dump(2) + "\n";
  for (figures_json& each : list) {
    each["table"] = table_of(each["figures"]);
    each.erase("figures");
  }
  const figures_json page{
      {"title", "gpumem: what is claimed, measured"},
      {"subtitle", fmt::format("Every experiment ran on simulated devices, seed {}.", with.setup.seed)},
      {"made_by", "gpumem_bench claims " GPUMEM_VERSION_TEXT},
      {"claims", list}};
  out.page_data = page.dump();
  return out;
}

}  // namespace gpumem::bench
