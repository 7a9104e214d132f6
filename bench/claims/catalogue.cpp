/// The list of all claims, and their results as a table, as JSON and for the page.
#include <fmt/format.h>

#include <algorithm>
#include <iterator>

#include "assign_or_return.hpp"
#include "bits.hpp"
#include "card.hpp"
#include "claims_report.hpp"
#include "gpumem/settings.hpp"
#include "inputs.hpp"
#include "log.hpp"
#include "parallel.hpp"
#include "progress.hpp"
#include "text.hpp"
#include "with_framework.hpp"

namespace gpumem::bench {
namespace {

std::vector<claim> all_claims() {
  std::vector<claim> claims;
  for (const auto& some : {grab_all_claims(), growth_claims(), limit_claims(), device_claims(), day_claims()}) {
    claims.insert(claims.end(), some.begin(), some.end());
  }
  return claims;
}

result<std::vector<claim>> asked_for(const std::vector<std::string>& only) {
  std::vector<claim> all = all_claims();
  if (only.empty()) return all;
  std::vector<claim> selected;
  for (const std::string& id : only) {
    const auto found = std::find_if(all.begin(), all.end(), [&](const claim& each) { return each.id == id; });
    if (found == all.end()) {
      std::string known;
      for (const claim& each : all) known += (known.empty() ? "" : ", ") + std::string{each.id};
      return status{errc::bad_setting, fmt::format("--only {}: expected one of {}", printable(id), known)};
    }
    selected.push_back(*found);
  }
  return selected;
}

bool on_card(const claim& subject, const options& options) { return options.setup.cuda && !subject.on_card.empty(); }

std::string command_of(const claim& subject, const options& options) {
  return fmt::format(
      "gpumem_bench claims --only {} --seed {}{}", subject.id, options.setup.seed,
      on_card(subject, options) ? fmt::format(" --device cuda:{}", options.setup.cuda->info.ordinal) : "");
}

std::string device_of(const claim& subject, const options& options) {
  if (!on_card(subject, options)) return "simulated";
  return fmt::format("cuda:{} ({})", options.setup.cuda->info.ordinal, options.setup.cuda->info.name);
}

/// Checks before the first experiment that the card is large enough.
status try_card(const claim_setup& setup) {
  constexpr std::uint64_t least_bytes = 8 * gib;  // a tenth of it holds a context and the default headroom
  const auto refused = [&](const std::string& why) {
    return status{errc::bad_setting, fmt::format("--device cuda:{}: {}", setup.replay.cuda->info.ordinal, why)};
  };
  const auto card = open_card(setup, {});
  if (!card) return refused(card.why().message());
  if (card->free_bytes < least_bytes) {
    return refused(fmt::format("{} of {} are free on {}; expected at least {}", format_bytes(card->free_bytes),
                               format_bytes(card->gpu->info().total_bytes), card->gpu->info().name,
                               format_bytes(least_bytes)));
  }
  const status opened = try_on_cuda(plain_row("growth"), setup.replay);
  return opened.ok() ? status{} : refused(opened.message());
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
  if (value.is_null()) return key.ends_with("_needs_bytes") ? "more than 2.5 times live" : "-";
  if (value.is_string()) return value.get<std::string>();
  if (value.is_array()) {
    std::string text;
    for (const figures_json& each : value) text += (text.empty() ? "" : ", ") + cell(key, each);
    return text;
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

/// Breaks lines at spaces, at most 100 characters each.
std::string wrapped(std::string_view text, std::string_view indent) {
  std::string lines{indent};
  std::size_t column = 0;
  while (!text.empty()) {
    const std::size_t space = std::min(text.find(' '), text.size());
    if (column > 0 && column + 1 + space > 100) {
      lines.append("\n").append(indent);
      column = 0;
    }
    if (column > 0) {
      lines += ' ';
      ++column;
    }
    lines.append(text.substr(0, space));
    column += space;
    text.remove_prefix(std::min(space + 1, text.size()));
  }
  return lines + "\n";
}

class quiet_log {
 public:
  quiet_log() : former_{set_log_sink([](std::string_view) {})} {}
  ~quiet_log() { (void)set_log_sink(std::move(former_)); }
  quiet_log& operator=(quiet_log&&) = delete;

 private:
  log_sink former_;
};

}  // namespace

result<claims_report> run_claims(const options& options) {
  ASSIGN_OR_RETURN(const auto claims, asked_for(options.only));
  claim_setup setup;
  setup.replay.seed = options.setup.seed;
  setup.replay.lag_ns = options.setup.lag_ns;
  ASSIGN_OR_RETURN(const auto paths, traces_in(bundled_traces_folder()));
  for (const std::string& path : paths) {
    ASSIGN_OR_RETURN(auto t, load_trace(path));
    setup.bundled.push_back(std::move(t));
  }
  claim_setup setup_on_card = setup;
  setup_on_card.replay.device = options.setup.device;
  setup_on_card.replay.cuda = options.setup.cuda;
  if (options.setup.cuda) {
    if (status can = try_card(setup_on_card); !can) return can;
  }
  // The experiments run into limits on purpose, so the allocator's warnings are dropped.
  const quiet_log no_lines;
  std::vector<findings> found(claims.size());
  progress bar{claims.size(), options.quiet};
  const unsigned jobs =
      options.setup.cuda ? 1 : options.jobs;  // experiments on a GPU run one after the other, alone on the card
  status ran = run_parallel(claims.size(), jobs, [&](std::size_t index) -> status {
    const claim& each = claims[index];
    try {
      found[index] = each.run(on_card(each, options) ? setup_on_card : setup);
    } catch (const experiment_failed& failed) {
      return {failed.why.code(), fmt::format("{}: {}", each.id, failed.why.message())};
    }
    bar.step(each.id);
    return {};
  });
  if (!ran) return ran;

  std::vector<framework_findings> by_frameworks;
  for (const std::string& framework : options.frameworks) {
    ASSIGN_OR_RETURN(auto got, measure_with(framework, options));
    std::move(got.begin(), got.end(), std::back_inserter(by_frameworks));
  }

  claims_report report;
  figures_json list = figures_json::array();
  bool all_simulated = true;
  for (std::size_t i = 0; i < claims.size(); ++i) {
    const claim& each = claims[i];
    const std::string device = device_of(each, options);
    all_simulated &= !on_card(each, options) || options.setup.cuda->info.simulated;
    const std::string difference = on_card(each, options) ? fmt::format(" On {}: {}", device, each.on_card) : "";
    list.push_back({{"id", each.id},
                    {"statement", each.statement},
                    {"source", each.source},
                    {"experiment", std::string{each.experiment} + difference},
                    {"device", device},
                    {"expected", each.expected},
                    {"measured", found[i].measured},
                    {"verdict", to_string(found[i].outcome)},
                    {"command", command_of(each, options)},
                    {"figures", found[i].figures}});
    report.table += fmt::format("{}: {}{}\n{}{}\n", each.id, to_string(found[i].outcome),
                                options.setup.cuda ? fmt::format(" [{}]", device) : "", wrapped(each.statement, "  "),
                                wrapped(found[i].measured, "    "));
    for (const framework_findings& framework_result : by_frameworks) {
      if (framework_result.id != each.id) continue;
      list.back()["by_frameworks"].push_back(json_of(framework_result));
      report.table +=
          fmt::format("  by {}, simulated: {}\n{}\n", framework_result.name, to_string(framework_result.found.outcome),
                      wrapped(framework_result.found.measured, "    "));
    }
  }
  report.table +=
      fmt::format("{}, seed {}. --html shows figures, sources and set-ups; --only ID repeats one.\n",
                  options.setup.cuda ? "Each on the device in brackets" : "All simulated", options.setup.seed);
  const figures_json all{{"schema", 1},
                         {"command", "claims"},
                         {"simulated", all_simulated},
                         {"seed", options.setup.seed},
                         {"claims", list}};
  report.json = all.dump(2) + "\n";
  for (figures_json& each : list) {
    each["table"] = table_of(each["figures"]);
    each.erase("figures");
    if (!each.contains("by_frameworks")) continue;
    for (figures_json& one : each["by_frameworks"]) {
      one["table"] = table_of(one["figures"]);
      one.erase("figures");
    }
  }
  const figures_json page{
      {"title", "gpumem: what is claimed, measured"},
      {"subtitle",
       fmt::format("{}, seed {}.",
                   options.setup.cuda ? fmt::format("Experiments about one card ran on cuda:{} ({}), the others "
                                                    "on simulated devices",
                                                    options.setup.cuda->info.ordinal, options.setup.cuda->info.name)
                                      : "Every experiment ran on simulated devices",
                   options.setup.seed)},
      {"made_by", "gpumem_bench claims " GPUMEM_VERSION_TEXT},
      {"claims", list}};
  report.page_data = page.dump();
  return report;
}

}  // namespace gpumem::bench
