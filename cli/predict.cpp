// Runs the program, replays the trace under each policy within each capacity, runs it again for policies whose replays
// cannot be exact, and prints the rows.
#include "predict.hpp"

#include <fmt/format.h>
#include <signal.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>

#include "card_predictions.hpp"
#include "cards.hpp"
#include "device_figures.hpp"
#include "fail.hpp"
#include "prediction_command.hpp"
#include "simulated_text.hpp"
#include "units.hpp"

namespace gpumem::cli {
namespace {

using json = nlohmann::ordered_json;

result<std::vector<capacity>> capacities_of(const predict_options& options) {
  std::vector<std::string> texts = options.capacities;
  if (texts.empty()) texts.push_back(options.card);
  std::vector<capacity> capacities;
  for (const std::string& text : texts) {
    std::string key;
    capacity each{text, 0};
    if (status ok = choose_card(text, key, each.bytes); !ok) {
      std::string why = ok.message();
      if (!options.capacities.empty()) why.replace(0, std::string_view{"--card"}.size(), "--capacity");
      return status{errc::bad_setting, why};
    }
    if (each.bytes == 0) each.bytes = simcuda::find_card(key)->bytes();
    capacities.push_back(each);
  }
  return capacities;
}

/// Explains how to create the file for GPUMEM_PLAN; empty if no row that fits follows a plan.
std::string plan_text(const json& rows, const std::string& trace) {
  const bool planned = std::any_of(rows.begin(), rows.end(), [](const json& row) {
    return row["fits"].get<bool>() && row["settings"].get<std::string>().find("GPUMEM_PLAN=") != std::string::npos;
  });
  if (!planned) return {};
  if (!trace.empty()) return fmt::format("\nplanned follows a plan of this run: gpumem plan {} -o run.plan\n", trace);
  return "\nplanned follows a plan of this run: predict --trace run.csv.gz keeps its allocations, and\n"
         "gpumem plan run.csv.gz -o run.plan makes the plan.\n";
}

/// The exit status of a program that the user or the system asked to end.
bool is_interruption(int exit_status) {
  constexpr std::array<int, 4> signals{SIGHUP, SIGINT, SIGQUIT, SIGTERM};
  return std::ranges::any_of(signals, [exit_status](int signal) { return exit_status == 128 + signal; });
}

std::string as_text(const json& all, const std::string& trace) {
  const auto bytes = [](const json& value) { return format_bytes(value.get<std::uint64_t>()); };
  std::string text =
      fmt::format("{} operations, {} live at the peak on {} (--card); context {} (assumed, --context). Simulated.\n\n",
                  all["ops"].get<std::uint64_t>(), bytes(all["peak_live_bytes"]), all["card"].get<std::string>(),
                  bytes(all["context_bytes"]));
  const bool untrue = !all["untrue_values"].is_null();
  if (untrue) {
    text +=
        fmt::format("Only if no size depends on untrue values (*): {}.\n\n", all["untrue_values"].get<std::string>());
  }
  const char* const mark = untrue ? "*" : "";
  std::vector<std::vector<std::string>> lines{{"<card", "<policy", "<fits", "peak reserved", "room", "<set"}};
  const std::uint64_t context = all["context_bytes"];
  const json& rows = all["results"];
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const json& row = rows[i];
    const auto of_another = [&](const json& candidate) { return candidate["capacity"] != row["capacity"]; };
    const bool first = i == 0 || of_another(rows[i - 1]);
    const auto begin = rows.begin() + static_cast<std::ptrdiff_t>(i);
    const auto end = std::find_if(begin, rows.end(), of_another);
    if (first && std::none_of(begin, end, [](const json& each) { return each["fits"].get<bool>(); })) {
      lines.push_back({row["capacity"], "every one", fmt::format("no{}", mark), "-", "-", ""});
      i += static_cast<std::size_t>(end - begin) - 1;
      continue;
    }
    const bool fits = row["fits"];
    const std::uint64_t taken = row["peak_reserved_bytes"].get<std::uint64_t>() + context;
    const std::uint64_t card = row["capacity_bytes"];
    lines.push_back({row["capacity"], row["policy"], fmt::format("{}{}", fits ? "yes" : "no", mark),
                     fits ? bytes(row["peak_reserved_bytes"]) : "-",
                     fits && card >= taken ? format_bytes(card - taken) : "-", fits ? row["settings"] : ""});
  }
  return text + table(lines) + plan_text(rows, trace);
}

}  // namespace

void add_predict_command(CLI::App& app, predict_options& options) {
  CLI::App* const predict =
      app.add_subcommand("predict", "runs a program simulated, then says which cards and policies would hold it");
  predict->footer(
      "The command and its arguments follow --: gpumem predict [OPTIONS] -- COMMAND...\n"
      "Example: gpumem predict --capacity 24GiB --capacity 80GiB -- python train.py");
  predict->add_option("--capacity", options.capacities, "memory (24GiB) or a card's name; may be repeated")
      ->type_name("C")
      ->allow_extra_args(false);
  add_recorded_run_options(*predict, options);
  predict->add_flag("--once", options.once,
                    "do not run the program again under expandable, whose peak is then a replay's");
  predict->add_flag("--json", options.json, "as JSON; the program's own output goes to standard error either way");
}

int predict(const predict_options& options) {
  const auto capacities = capacities_of(options);
  if (!capacities) return fail(bad_input, capacities.why().message());
  prediction_run run;
  if (const int failed = run_for_prediction(options, "predict", run); failed != 0) return failed;
  int interrupted = 0;
  const served_run measure = [&](const capacity& card, const std::string& settings) -> std::optional<measured_peak> {
    if (interrupted != 0) return std::nullopt;
    int exit_status = 0;
    const auto served = measure_served(options, run.context_bytes, card, run.recorded, settings, exit_status);
    if (is_interruption(exit_status)) interrupted = exit_status;
    if (served) return *served;
    run.recorded.warnings.push_back(
        fmt::format("the peak of {} on {} is a replay's, which may be some percent apart: a run of the program with it "
                    "gave none: {}",
                    settings, card.name, served.why().message()));
    return std::nullopt;
  };
  json rows;
  const bool measures = !options.once && run.recorded.may_be_served;
  if (status done = predict_all(run.recorded, *capacities, run.context_bytes, rows, measures ? measure : served_run{});
      !done) {
    return fail(prediction_failed, done.message());
  }
  if (interrupted != 0) return fail(interrupted, "predict: interrupted");
  const bool any = std::any_of(rows.begin(), rows.end(), [](const json& row) { return row["fits"].get<bool>(); });
  json all = prediction_figures(run, options);
  all["results"] = std::move(rows);
  print_prediction(run, options.json ? as_json_text(all) : as_text(all, options.trace));
  return any ? 0 : nothing_fits;
}

}  // namespace gpumem::cli
