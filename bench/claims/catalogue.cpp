/// The list of all claims, and their results as a table, as JSON and for the page.
#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <optional>

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

bool on_card(const claim& of, const options& with) { return with.setup.cuda && !of.on_card.empty(); }

std::string command_of(const claim& of, const options& with) {
  return fmt::format("gpumem_bench claims --only {} --seed {}{}", of.id, with.setup.seed,
                     on_card(of, with) ? fmt::format(" --device cuda:{}", with.setup.cuda->info.ordinal) : "");
}

std::string device_of(const claim& of, const options& with) {
  if (!on_card(of, with)) return "simulated";
  return fmt::format("cuda:{} ({})", with.setup.cuda->info.ordinal, with.setup.cuda->info.name);
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
                               format_bytes(card->on->info().total_bytes), card->on->info().name,
                               format_bytes(least_bytes)));
  }
  const auto row = plain_row("growth");
  if (!row) return row.why();
  const status opened = try_on_cuda(*row, setup.replay);
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

/// Breaks lines at spaces, at most 100 characters each.
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
  claim_setup setup_on_card = setup;
  setup_on_card.replay.device = with.setup.device;
  setup_on_card.replay.cuda = with.setup.cuda;
  if (with.setup.cuda) {
    if (status can = try_card(setup_on_card); !can) return can;
  }
  // The experiments run into limits on purpose, so the allocator's warnings are dropped.
  const quiet_log no_lines;
  std::vector<findings> found(claims->size());
  progress bar{claims->size(), with.quiet};
  const unsigned jobs =
      with.setup.cuda ? 1 : with.jobs;  // experiments on a GPU run one after the other, alone on the card
  status ran = run_parallel(claims->size(), jobs, [&](std::size_t i) -> status {
    auto got = (*claims)[i].run(on_card((*claims)[i], with) ? setup_on_card : setup);
    if (!got) return {got.code(), fmt::format("{}: {}", (*claims)[i].id, got.why().message())};
    found[i] = *std::move(got);
    bar.step((*claims)[i].id);
    return {};
  });
  if (!ran) return ran;

  std::vector<framework_findings> by_frameworks;
  for (const std::string& framework : with.frameworks) {
    auto got = measure_with(framework, with);
    if (!got) return got.why();
    std::move(got->begin(), got->end(), std::back_inserter(by_frameworks));
  }

  claims_report out;
  figures_json list = figures_json::array();
  bool all_simulated = true;
  for (std::size_t i = 0; i < claims->size(); ++i) {
    const claim& each = (*claims)[i];
    const std::string device = device_of(each, with);
    all_simulated &= !on_card(each, with) || with.setup.cuda->info.simulated;
    const std::string difference = on_card(each, with) ? fmt::format(" On {}: {}", device, each.on_card) : "";
    list.push_back({{"id", each.id},
                    {"statement", each.statement},
                    {"source", each.source},
                    {"experiment", std::string{each.experiment} + difference},
                    {"device", device},
                    {"expected", each.expected},
                    {"measured", found[i].measured},
                    {"verdict", to_string(found[i].outcome)},
                    {"command", command_of(each, with)},
                    {"figures", found[i].figures}});
    out.table += fmt::format("{}: {}{}\n{}{}\n", each.id, to_string(found[i].outcome),
                             with.setup.cuda ? fmt::format(" [{}]", device) : "", wrapped(each.statement, "  "),
                             wrapped(found[i].measured, "    "));
    for (const framework_findings& one : by_frameworks) {
      if (one.id != each.id) continue;
      list.back()["by_frameworks"].push_back(json_of(one));
      out.table += fmt::format("  by {}, simulated: {}\n{}\n", one.name, to_string(one.found.outcome),
                               wrapped(one.found.measured, "    "));
    }
  }
  out.table += fmt::format("{}, seed {}. --html shows figures, sources and set-ups; --only ID repeats one.\n",
                           with.setup.cuda ? "Each on the device in brackets" : "All simulated", with.setup.seed);
  const figures_json all{
      {"schema", 1}, {"command", "claims"}, {"simulated", all_simulated}, {"seed", with.setup.seed}, {"claims", list}};
  out.json = all.dump(2) + "\n";
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
                   with.setup.cuda ? fmt::format("Experiments about one card ran on cuda:{} ({}), the others "
                                                 "on simulated devices",
                                                 with.setup.cuda->info.ordinal, with.setup.cuda->info.name)
                                   : "Every experiment ran on simulated devices",
                   with.setup.seed)},
      {"made_by", "gpumem_bench claims " GPUMEM_VERSION_TEXT},
      {"claims", list}};
  out.page_data = page.dump();
  return out;
}

}  // namespace gpumem::bench
