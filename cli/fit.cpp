// Tries the cards of `simulate --card list` from the smallest on. A card smaller than the peak of live memory cannot
// hold the program under any policy. A card with room for the framework's own peak of reserved memory holds it
// unchanged. Only the cards between these two need replays.
#include "fit.hpp"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <map>
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

/// The capacities of all cards in ascending order; cards of equal memory share one.
std::vector<capacity> capacities_of_cards() {
  std::map<std::uint64_t, std::string> names;
  for (const simcuda::card_profile& card : simcuda::card_profiles()) {
    std::string& all = names[card.bytes()];
    all += fmt::format("{}{}", all.empty() ? "" : ", ", card.key);
  }
  std::vector<capacity> capacities;
  for (const auto& [bytes, name] : names) capacities.push_back({name, bytes});
  return capacities;
}

bool follows_a_plan(const json& row) {
  return row["settings"].get<std::string>().find("GPUMEM_PLAN=") != std::string::npos;
}

/// The row of one capacity that needs the least work from the user: the framework's own allocator, then the cheapest
/// policy, last one that needs a plan. Requires that `rows` is not empty.
json best_of(const json& rows) {
  for (const bool planned : {false, true}) {
    for (const json& row : rows) {
      if (row["fits"].get<bool>() && follows_a_plan(row) == planned) return row;
    }
  }
  return rows.front();
}

json row_without_replay(const capacity& card, bool fits, std::uint64_t peak_reserved_bytes) {
  return {{"capacity", card.name},
          {"capacity_bytes", card.bytes},
          {"policy", "native"},
          {"fits", fits},
          {"peak_reserved_bytes", peak_reserved_bytes},
          {"settings", ""},
          {"by", "measured"}};
}

status rows_of_cards(const prediction_run& run, json& cards) {
  const recording& recorded = run.recorded;
  cards = json::array();
  for (const capacity& each : capacities_of_cards()) {
    const bool as_it_is = recorded.native_reserved_bytes <= rest_of(each, run.context_bytes);
    const bool never = recorded.trace.peak_live_bytes + recorded.outside_bytes > rest_of(each, run.context_bytes);
    if (as_it_is || never) {
      cards.push_back(row_without_replay(each, as_it_is, recorded.native_reserved_bytes));
      continue;
    }
    json rows;
    if (status done = predict_all(recorded, {each}, run.context_bytes, rows); !done) return done;
    cards.push_back(best_of(rows));
  }
  return {};
}

const char* name_of_native(const recording& recorded) {
  return recorded.by_torch ? "PyTorch's own allocator" : "cudaMalloc";
}

std::string words_of(const std::vector<std::string>& command) {
  std::string text;
  for (const std::string& word : command) text += (text.empty() ? "" : " ") + word;
  return text;
}

/// One sentence without its full stop.
std::string verdict_of(const prediction_run& run, const fit_options& options, const json& rows) {
  const std::string program = words_of(options.command);
  const auto smallest = std::find_if(rows.begin(), rows.end(), [](const json& row) { return row["fits"].get<bool>(); });
  if (smallest == rows.end()) {
    const json& largest = rows.back();
    return fmt::format("{} fits none of these cards: {} were live at the peak, and {} has {}", program,
                       format_bytes(run.recorded.trace.peak_live_bytes + run.recorded.outside_bytes),
                       largest["capacity"].get<std::string>(),
                       format_bytes(largest["capacity_bytes"].get<std::uint64_t>()));
  }
  const json& row = *smallest;
  const std::uint64_t taken = row["peak_reserved_bytes"].get<std::uint64_t>() + run.context_bytes;
  const std::uint64_t card = row["capacity_bytes"];
  const auto set = row["settings"].get<std::string>();
  return fmt::format("{} fits {} ({}) with {}, and leaves {} of it", program, row["capacity"].get<std::string>(),
                     format_bytes(card), set.empty() ? name_of_native(run.recorded) : set,
                     format_bytes(card - std::min(card, taken)));
}

std::string as_text(const prediction_run& run, const fit_options& options, const json& rows) {
  const recording& recorded = run.recorded;
  const bool untrue = !recorded.untrue_values.empty();
  std::string text = fmt::format("{}{}. Simulated.\n\n", untrue ? "Only if no size depends on untrue values (*): " : "",
                                 verdict_of(run, options, rows));
  std::vector<std::vector<std::string>> lines{{"<card", "memory", "<fits", "peak reserved", "room", "<with"}};
  for (const json& row : rows) {
    const bool fits = row["fits"];
    const std::uint64_t card = row["capacity_bytes"];
    const std::uint64_t reserved = row["peak_reserved_bytes"];
    const auto set = row["settings"].get<std::string>();
    lines.push_back({row["capacity"], format_bytes(card), fmt::format("{}{}", fits ? "yes" : "no", untrue ? "*" : ""),
                     fits ? format_bytes(reserved) : "-",
                     fits ? format_bytes(card - std::min(card, reserved + run.context_bytes)) : "-",
                     !fits         ? ""
                     : set.empty() ? name_of_native(recorded)
                                   : set});
  }
  text += table(lines);
  text += fmt::format(
      "\nA context of {} is assumed (--context). The program saw {} with ample memory (--card): one that sizes "
      "itself by its card takes another amount on another card.\n",
      format_bytes(run.context_bytes), options.card);
  if (std::any_of(rows.begin(), rows.end(),
                  [](const json& row) { return row["fits"].get<bool>() && follows_a_plan(row); })) {
    text +=
        "For GPUMEM_PLAN, fit --trace run.csv.gz keeps the allocations, and gpumem plan run.csv.gz -o run.plan makes "
        "the "
        "plan.\n";
  }
  if (recorded.host_bytes != 0)
    text += fmt::format("The run itself took up to {} of this host's memory.\n", format_bytes(recorded.host_bytes));
  return text;
}

}  // namespace

void add_fit_command(CLI::App& app, fit_options& options) {
  CLI::App* const command =
      app.add_subcommand("fit", "runs a program simulated once, then names the smallest card that holds it");
  command->footer(
      "The command and its arguments follow --: gpumem fit [OPTIONS] -- COMMAND...\n"
      "Example: gpumem fit -- python train.py");
  add_recorded_run_options(*command, options);
  command->add_flag("--json", options.json, "as JSON; the program's own output goes to standard error either way");
}

int fit(const fit_options& options) {
  prediction_run run;
  if (const int failed = run_for_prediction(options, "fit", run); failed != 0) return failed;
  json rows;
  if (status done = rows_of_cards(run, rows); !done) return fail(prediction_failed, done.message());
  const auto smallest = std::find_if(rows.begin(), rows.end(), [](const json& row) { return row["fits"].get<bool>(); });
  json all = prediction_figures(run, options);
  all["verdict"] = verdict_of(run, options, rows);
  all["smallest"] = smallest != rows.end() ? *smallest : json(nullptr);
  all["results"] = rows;
  print_prediction(run, options.json ? as_json_text(all) : as_text(run, options, rows));
  return smallest != rows.end() ? 0 : nothing_fits;
}

}  // namespace gpumem::cli
