#include "simulated_text.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <map>

#include "cards.hpp"
#include "device_figures.hpp"
#include "rank_watch.hpp"
#include "simulated_cuda.hpp"
#include "units.hpp"

namespace gpumem::cli {
namespace {

using json = nlohmann::ordered_json;

double seconds(std::uint64_t ns) { return static_cast<double>(ns) / 1e9; }

/// PyTorch's own figures of a card; null if it has none.
const nlohmann::json* torch_card(const simulated_process& process, int card) {
  if (!process.torch.is_object() || !process.torch.contains("cards")) return nullptr;
  const auto& cards = process.torch["cards"];
  const auto index = static_cast<std::size_t>(card);
  return index < cards.size() ? &cards[index] : nullptr;
}

json card_of(const simulated_process& process, int index, const simcuda::card_profile& profile, bool several) {
  const simcuda::card_record& card = process.record.card[index];
  const std::uint64_t own = card.context_bytes + card.modules_bytes + card.libraries_bytes;
  const std::uint64_t reserved = card.peak_used_bytes > own ? card.peak_used_bytes - own : 0;
  json figures{{"name", profile.name},
               {"card", card.number},
               {"bytes", card.bytes},
               {"peak_live_bytes", card.peak_live_bytes},
               {"peak_live_by", "driver"},
               {"peak_reserved_bytes", reserved},
               {"peak_at_s", seconds(card.peak_used_ns)},
               {"context_bytes", card.context_bytes},
               {"modules_bytes", card.modules_bytes},
               {"libraries_bytes", card.libraries_bytes},
               {"peak_used_bytes", card.peak_used_bytes}};
  if (several) figures["pid"] = process.record.pid;
  if (process.record.rank >= 0) figures["rank"] = process.record.rank;
  if (const nlohmann::json* const torch = torch_card(process, index); torch != nullptr) {
    figures["torch"] = *torch;
    if (const std::uint64_t live = torch->value("peak_allocated_bytes", std::uint64_t{0}); live != 0) {
      figures["peak_live_bytes"] = live;
      figures["peak_live_by"] = "torch";
    }
  }
  return figures;
}

json refusals_of(const simulated_process& process, bool several) {
  json rows = json::array();
  const auto kept = std::min<std::uint64_t>(process.record.refusals, simcuda::report_refusals);
  for (std::uint64_t i = 0; i < kept; ++i) {
    const simcuda::refusal_record& each = process.record.refusal[i];
    const std::uint64_t total = process.record.card[each.card].bytes;
    const std::uint64_t free = total > each.used_bytes ? total - each.used_bytes : 0;
    const std::string refused_by(each.why, ::strnlen(each.why, sizeof each.why));
    json row{{"card", process.record.card[each.card].number},
             {"at_s", seconds(each.at_ns)},
             {"function", std::string{each.function}},
             {"requested_bytes", each.requested_bytes},
             {"used_bytes", each.used_bytes},
             {"others_bytes", each.others_bytes},
             {"free_bytes", free},
             {"why", !refused_by.empty()            ? refused_by
                     : each.requested_bytes <= free ? "no room in one piece"
                     : each.others_bytes != 0
                         ? fmt::format("more than is free; others hold {}", format_bytes(each.others_bytes))
                         : "more than is free"}};
    if (several) row["pid"] = process.record.pid;
    if (process.record.rank >= 0) row["rank"] = process.record.rank;
    rows.push_back(std::move(row));
  }
  return rows;
}

std::string stream_name(std::uint64_t handle) {
  return handle == 0 ? "the default stream" : fmt::format("stream {:#x}", handle);
}

/// The recorded hazards; those of the same kind at the same line share one entry.
json hazards_of(const simulated_outcome& outcome) {
  json hazards = json::array();
  std::map<std::string, std::size_t> known;
  for (const simulated_process& each : outcome.processes) {
    const auto kept = std::min<std::uint64_t>(each.record.hazards, simcuda::report_hazards);
    for (std::uint64_t i = 0; i < kept; ++i) {
      const simcuda::hazard_record& h = each.record.hazard[i];
      const bool for_all = h.receiver == 0 && std::string_view{h.function} == "cuMemAlloc";
      const auto [at, is_new] = known.emplace(fmt::format("{}|{}|{}", h.kind, h.place, h.function), hazards.size());
      if (!is_new) {
        hazards[at->second]["times"] = hazards[at->second]["times"].get<int>() + 1;
        continue;
      }
      hazards.push_back({{"kind", h.kind},
                         {"place", h.place},
                         {"function", h.function},
                         {"times", 1},
                         {"card", h.card},
                         {"at_s", seconds(h.at_ns)},
                         {"address", h.address},
                         {"bytes", h.bytes},
                         {"user", stream_name(h.user)},
                         {"receiver", for_all ? "any stream" : stream_name(h.receiver)}});
    }
  }
  return hazards;
}

/// Warns of processes that were not simulated, and of a program that never initialised CUDA.
void explain(const simulated_outcome& outcome, json& warnings) {
  const result<std::string> folder = find_simulated_driver();
  for (const simulated_process& each : outcome.processes) {
    if (each.record.foreign_runtime == 0) continue;
    warnings.push_back(fmt::format(
        "{}: contains NVIDIA's own CUDA runtime (linked statically, or of a CUDA version without a double), which does "
        "not run on the simulated card: link it with `nvcc -cudart shared`, or with `-L {}`, whose libcudart_static.a "
        "does, or use a build for CUDA {}",
        each.runtime.empty() ? "the program" : each.runtime, folder ? *folder : "simcuda", outcome.runtimes));
  }
  if (outcome.processes.empty() && !outcome.runtimes.empty()) {
    warnings.push_back(fmt::format(
        "the program never initialised CUDA: nothing was simulated (it does not use CUDA, needs the libraries of a "
        "version other than {}{}, or ended before)",
        outcome.runtimes,
        outcome.runtimes == "13" ? " (12 needs a build with the line that scripts/cuda_headers --cuda12 prints)" : ""));
  }
}

/// Warns of managed memory that did not fit on the card.
void explain_managed(const simulated_outcome& ran, json& warnings) {
  std::uint64_t bytes = 0;
  for (const simulated_process& each : ran.processes) bytes += each.record.beyond_bytes;
  if (bytes == 0) return;
  warnings.push_back(fmt::format(
      "{} of managed memory had no room on the card and lie on the host: a card serves them as well, and moves pages "
      "when they are used",
      format_bytes(bytes)));
}

/// Warns if the program initialised CUDA but allocated no memory on a card. Only one that ran to its end without an
/// error can have worked on the CPU instead: any other may have ended before its first request.
void explain_unused_cards(const simulated_outcome& ran, json& warnings) {
  const auto is_unused = [](const simulated_process& each) {
    return each.record.foreign_runtime == 0 && each.record.refusals == 0 &&
           std::all_of(std::begin(each.record.card), std::end(each.record.card),
                       [](const simcuda::card_record& card) { return card.peak_live_bytes == 0; });
  };
  if (ran.processes.empty() || !std::all_of(ran.processes.begin(), ran.processes.end(), is_unused)) return;
  if (ran.exit_status != 0) {
    warnings.push_back(
        fmt::format("the program initialised CUDA and ended with status {} before it took memory of a card: there is "
                    "no peak to tell",
                    ran.exit_status));
    return;
  }
  if (ran.settled_reads != 0 || !ran.stopped.empty()) return;  // it was ended, and a warning says why
  warnings.push_back(
      "the program initialised CUDA and took no memory of a card: if it should have, it ran on the CPU; "
      "gpumem simulate --doctor says what its Python lacks");
}

/// Warns of cards whose memory is exceeded by the sum of processes that did not share the card.
void explain_sums(const simulated_outcome& outcome, const simulated_setup& setup, json& warnings) {
  const char* const shared = std::getenv("SIMCUDA_SHARED");
  if (!setup.shared.empty() || shared == nullptr || *shared != '\0') return;
  struct users {
    int processes = 0;
    std::uint64_t peaks = 0;
    std::uint64_t bytes = 0;
  };
  std::map<std::int64_t, users> by_card;
  for (const simulated_process& each : outcome.processes) {
    for (int i = 0; i < each.record.cards; ++i) {
      const simcuda::card_record& card = each.record.card[i];
      if (card.peak_used_bytes == 0) continue;
      users& all = by_card[card.number];
      ++all.processes;
      all.peaks += card.peak_used_bytes;
      all.bytes = card.bytes;
    }
  }
  for (const auto& each : by_card) {
    const users& all = each.second;
    if (all.processes < 2 || all.peaks <= all.bytes) continue;
    warnings.push_back(fmt::format(
        "{} processes took memory of card {}, each as if it had the card to itself: their peaks are {} together, more "
        "than its {}. If they run at the same time, they share it without SIMCUDA_SHARED=",
        all.processes, each.first, format_bytes(all.peaks), format_bytes(all.bytes)));
  }
}

std::string amount(const json& bytes) { return format_bytes(bytes.get<std::uint64_t>()); }

std::string tell_hazards(const json& figures) {
  if (!figures.contains("hazards")) return {};
  const auto all = figures["hazards"].get<std::uint64_t>();
  if (all == 0) {
    if (!figures["unseen"].is_null())
      return fmt::format("referee: no verdict: {}\n", figures["unseen"].get<std::string>());
    const auto kernels = figures["kernels"].get<std::uint64_t>();
    return fmt::format(
        "referee: no block went on while a stream might still use it ({} uses seen{})\n",
        figures["uses_seen"].get<std::uint64_t>(),
        kernels == 0 || figures.contains("torch") ? "" : fmt::format("; {} kernels' own uses are not seen", kernels));
  }
  std::string text = fmt::format("referee: blocks went on while a stream might still use them: {}\n", all);
  for (const json& row : figures["hazards_at"]) {
    const auto place = row["place"].get<std::string>();
    const auto kind = row["kind"].get<std::string>();
    const auto receiver = row["receiver"].get<std::string>();
    text +=
        fmt::format("  {}: {} that {} might still use, {} ({} times)\n", place.empty() ? "no line of Python" : place,
                    amount(row["bytes"]), row["user"].get<std::string>(),
                    kind == "early_reuse" ? "handed to " + receiver
                    : kind == "overlap"   ? "handed out twice"
                                          : "used or taken back behind their free",
                    row["times"].get<int>());
  }
  return text;
}

}  // namespace

std::string card_table() {
  std::vector<std::vector<std::string>> lines{
      {"<card", "<name", "memory MiB", "capability", "SMs", "threads/SM", "shared KiB/SM", "L2 MiB"}};
  for (const simcuda::card_profile& each : simcuda::card_profiles()) {
    lines.push_back({std::string{each.key}, std::string{each.name}, fmt::format("{}", each.memory_mib),
                     fmt::format("{}.{}", each.compute_major, each.compute_minor),
                     fmt::format("{}", each.multiprocessors), fmt::format("{}", each.threads_per_multiprocessor),
                     fmt::format("{}", each.shared_kib_per_multiprocessor),
                     fmt::format("{:g}", static_cast<double>(each.l2_kib) / 1024)});
  }
  return table(lines) + "\nAny other memory: --card 24GiB (with the rest of h100).\n";
}

std::string settled_warning(const simulated_outcome& outcome, const simulated_setup& setup) {
  return fmt::format(
      "ended: for {:g} s the program took no more memory and read values of the card {} times. If it waits for a value "
      "(until a loss has fallen), that never comes: nothing is computed. --settle 0 lets it run on",
      setup.settle_s, outcome.settled_reads);
}

std::string unsupported_warning(const simulated_outcome& outcome) {
  std::uint64_t times = 0;
  std::string first;
  for (const simulated_process& each : outcome.processes) {
    times += each.record.unsupported;
    const char* const name = each.record.first_unsupported;
    if (first.empty()) first.assign(name, ::strnlen(name, sizeof each.record.first_unsupported));
  }
  if (times == 0) return {};
  return fmt::format(
      "requests for memory by functions that simulated cards do not support: {}, first {}; they were refused, and what "
      "they take on a card is not counted",
      times, first);
}

json figures_of(const simulated_outcome& outcome, const simulated_setup& setup) {
  const simcuda::card_profile& profile = *simcuda::find_card(setup.card);
  json figures{{"schema", 1},
               {"simulated", true},
               {"command", setup.command},
               {"exit_status", outcome.exit_status},
               {"seconds", outcome.seconds},
               {"cards", json::array()},
               {"oom", json::array()},
               {"host_values_read", 0},
               {"untrue_values_read", 0},
               {"kernels", 0},
               {"warnings", json::array()}};
  const bool several = outcome.processes.size() > 1;
  std::uint64_t read = 0;
  std::uint64_t untrue = 0;
  std::uint64_t kernels = 0;
  std::uint64_t refusals = 0;
  std::uint64_t undefined = 0;
  std::string first;  // the first undefined use
  for (const simulated_process& each : outcome.processes) {
    for (int i = 0; i < each.record.cards; ++i) figures["cards"].push_back(card_of(each, i, profile, several));
    for (json& row : refusals_of(each, several)) figures["oom"].push_back(std::move(row));
    read += each.record.host_values_read;
    untrue += each.record.untrue_values_read;
    kernels += each.record.kernels;
    refusals += each.record.refusals;
    undefined += each.record.undefined_uses;
    if (first.empty()) first = each.record.undefined;
    if (each.torch.is_object()) {
      json torch{{"version", each.torch.value("version", "")}, {"allocator", each.torch.value("allocator", "")}};
      if (each.torch.contains("trace")) torch["trace"] = each.torch["trace"];
      if (each.torch.contains("error")) torch["error"] = each.torch["error"];
      figures["torch"].push_back(std::move(torch));
    }
  }
  figures["host_values_read"] = read;
  figures["untrue_values_read"] = untrue;
  figures["kernels"] = kernels;
  figures["undefined_uses"] = undefined;
  if (undefined != 0) {
    figures["warnings"].push_back(fmt::format(
        "the program did {} times what a card leaves undefined, first {}; --strict aborts it there", undefined, first));
  }
  if (refusals > figures["oom"].size()) {
    figures["warnings"].push_back(
        fmt::format("{} requests did not fit; the first {} are listed", refusals, figures["oom"].size()));
  }
  for (std::string& each : values_warnings(outcome)) figures["warnings"].push_back(std::move(each));
  if (outcome.settled_reads != 0) {
    figures["warnings"].push_back(settled_warning(outcome, setup));
  }
  if (!outcome.stopped.empty()) figures["warnings"].push_back(outcome.stopped);
  if (setup.referee) {
    std::uint64_t hazards = 0;
    std::uint64_t uses = 0;
    std::string unseen;
    for (const simulated_process& each : outcome.processes) {
      hazards += each.record.hazards;
      uses += each.record.uses_seen;
      if (unseen.empty()) unseen.assign(each.record.unseen, ::strnlen(each.record.unseen, sizeof each.record.unseen));
    }
    if (unseen.empty() && uses == 0) {
      unseen = "it saw no use of a block (it sees copies and fills, and the operations of PyTorch)";
    }
    figures["hazards"] = hazards;
    figures["hazards_at"] = hazards_of(outcome);
    figures["uses_seen"] = uses;
    figures["unseen"] = unseen.empty() ? json(nullptr) : json(unseen);
  }
  if (const std::string unsupported = unsupported_warning(outcome); !unsupported.empty()) {
    figures["warnings"].push_back(unsupported);
  }
  if (const std::string failed = failed_ranks_warning(outcome); !failed.empty()) figures["warnings"].push_back(failed);
  explain_sums(outcome, setup, figures["warnings"]);
  explain_managed(outcome, figures["warnings"]);
  explain_unused_cards(outcome, figures["warnings"]);
  explain(outcome, figures["warnings"]);
  return figures;
}

std::string summary_of(const json& figures) {
  std::string text = "\n";
  // Comes first, because untrue values may have caused the results below.
  const bool untrue = figures["untrue_values_read"] != 0U;
  std::string of_values;
  if (untrue) {
    for (const json& warning : figures["warnings"]) {
      if (warning.get<std::string>().starts_with("the host read values")) of_values = warning.get<std::string>();
    }
    text += fmt::format("The run depends on untrue values if they decide a size or an end: {}\n\n", of_values);
  }
  for (const json& card : figures["cards"]) {
    if (card["peak_used_bytes"] == 0U && figures["cards"].size() > 1) continue;
    const bool torch = card["peak_live_by"] == "torch";
    const bool several = figures["cards"].size() > 1;
    text += fmt::format("{} ({}), simulated{}{}{}\n", card["name"].get<std::string>(), amount(card["bytes"]),
                        several ? fmt::format(", card {}", card["card"].get<int>()) : "",
                        card.contains("rank") ? fmt::format(", rank {}", card["rank"].get<int>()) : "",
                        card.contains("pid") ? fmt::format(", process {}", card["pid"].get<std::uint64_t>()) : "");
    text += fmt::format("  peak live       {:>12}  {}\n", amount(card["peak_live_bytes"]),
                        torch ? "of tensors, by PyTorch" : "as the program asked the driver for it");
    text += fmt::format("  peak reserved   {:>12}  {:.1f} s after the first CUDA call\n",
                        amount(card["peak_reserved_bytes"]), card["peak_at_s"].get<double>());
    text += fmt::format("  context         {:>12}  assumed (--context)\n", amount(card["context_bytes"]));
    if (card["modules_bytes"] != 0U)
      text += fmt::format("  modules         {:>12}  assumed (--modules)\n", amount(card["modules_bytes"]));
    if (card["libraries_bytes"] != 0U) {
      text += fmt::format("  libraries       {:>12}  assumed (--libraries)\n", amount(card["libraries_bytes"]));
    }
    text += fmt::format("  together        {:>12}  {:.1f} % of the card\n", amount(card["peak_used_bytes"]),
                        100 * card["peak_used_bytes"].get<double>() / card["bytes"].get<double>());
    if (card.contains("torch") && card["torch"].value("ooms", 0) != 0) {
      text += fmt::format("  PyTorch: out of memory {} times\n", card["torch"].value("ooms", 0));
    }
  }
  std::size_t shown = 0;
  for (const json& row : figures["oom"]) {
    if (++shown > 5) break;
    text +=
        fmt::format("out of memory{} at {:.1f} s on card {}{}: {} of {} asked for with {} in use ({})\n",
                    untrue ? ", unless untrue values made it," : "", row["at_s"].get<double>(), row["card"].get<int>(),
                    row.contains("rank") ? fmt::format(", rank {}", row["rank"].get<int>()) : "",
                    row["function"].get<std::string>(), amount(row["requested_bytes"]), amount(row["used_bytes"]),
                    row["why"].get<std::string>());
  }
  if (figures["oom"].size() > shown - (shown > 5 ? 1 : 0))
    text += fmt::format("... {} in all\n", figures["oom"].size());
  text += tell_hazards(figures);
  for (const json& warning : figures["warnings"]) {
    if (warning != of_values) text += fmt::format("gpumem: {}\n", warning.get<std::string>());
  }
  return text;
}

}  // namespace gpumem::cli
