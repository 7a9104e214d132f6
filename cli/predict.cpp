// Runs the program once, with PyTorch's record of its allocations on. A program without PyTorch runs once more, served
// and recorded by gpumem. The trace is then replayed under each policy within each capacity, less the context.
//
// The framework's own allocator is the row `native`. If the card would have held the memory that it reserved on a card
// with ample room, that is the figure. With less memory it would have released cached segments; the policy `caching`,
// which works like PyTorch's allocator, gives the figure then.
//
// Memory past that allocator (of cudaMalloc in a PyTorch program, managed memory, memory of pages) is in no trace. It
// is the difference of two peaks: of all device memory, and of the memory that the traced allocator had reserved.
#include "predict.hpp"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <optional>

#include "advise.hpp"
#include "cards.hpp"
#include "device_figures.hpp"
#include "options.hpp"
#include "output_file.hpp"
#include "own_plans.hpp"
#include "print_error.hpp"
#include "process_traces.hpp"
#include "run.hpp"
#include "simulated_run.hpp"
#include "simulated_text.hpp"
#include "temporary_folder.hpp"
#include "text.hpp"
#include "trace.hpp"
#include "units.hpp"

namespace gpumem::cli {
namespace {

using json = nlohmann::ordered_json;

constexpr int failed = 1;
constexpr int bad_input = 2;
constexpr int nothing_fits = 3;
constexpr std::uint64_t room_for_everything = std::uint64_t{1} << 40;
constexpr std::uint64_t one_segment = std::uint64_t{2} << 20;  // no policy takes a smaller limit
constexpr std::chrono::milliseconds plan_time{10'000};

int fail(int code, std::string_view why) {
  print_error("gpumem: {}\n", printable(std::string{why}, 8192));
  return code;
}

struct capacity {
  std::string name;
  std::uint64_t bytes = 0;
};

result<std::vector<capacity>> capacities_of(const predict_options& with) {
  std::vector<std::string> texts = with.capacities;
  if (texts.empty()) texts.push_back(with.card);
  std::vector<capacity> out;
  for (const std::string& text : texts) {
    std::string key;
    capacity each{text, 0};
    if (status ok = choose_card(text, key, each.bytes); !ok) {
      std::string why = ok.message();
      if (!with.capacities.empty()) why.replace(0, std::string_view{"--card"}.size(), "--capacity");
      return status{errc::bad_setting, why};
    }
    if (each.bytes == 0) each.bytes = simcuda::find_card(key)->bytes();
    out.push_back(each);
  }
  return out;
}

/// The results of the run: its trace, and the memory that the framework's own allocator took.
struct recording {
  bench::trace trace;
  bool by_torch = false;  ///< PyTorch's record; otherwise gpumem's, of a run that it served
  std::uint64_t native_reserved_bytes = 0;
  std::uint64_t outside_bytes = 0;  ///< taken past the allocator whose allocations are in the trace
  std::uint64_t host_values_read = 0;
  std::string untrue_values;  ///< says so, with the lines; empty: none were read
  std::size_t processes = 0;  ///< that took memory of the card; the trace is of one
  std::vector<std::string> warnings;
};

/// The process with the highest peak on its first card.
const simulated_process* largest(const simulated_outcome& of) {
  const simulated_process* best = nullptr;
  for (const simulated_process& each : of.processes) {
    if (each.record.foreign_runtime != 0) continue;
    if (best == nullptr || each.record.card[0].peak_used_bytes > best->record.card[0].peak_used_bytes) best = &each;
  }
  return best;
}

std::uint64_t reserved_of(const simcuda::card_record& card) {
  const std::uint64_t own = card.context_bytes + card.modules_bytes + card.libraries_bytes;
  return card.peak_used_bytes - std::min(own, card.peak_used_bytes);
}

/// The driver's peak is of all memory; what it exceeds the allocator's own peak by was taken by other means.
void note_outside(const simulated_process& of, std::uint64_t allocator_peak, std::string_view allocator,
                  recording& into) {
  const std::uint64_t all = reserved_of(of.record.card[0]);
  if (all <= allocator_peak) return;
  into.outside_bytes = all - allocator_peak;
  into.warnings.push_back(
      fmt::format("{} were taken outside {} (the peak of all device memory, {}, less its own, {}): every row's peak "
                  "includes them, and its GPUMEM_LIMIT leaves room for them",
                  format_bytes(into.outside_bytes), allocator, format_bytes(all), format_bytes(allocator_peak)));
}

/// Compares PyTorch's own peaks with the driver's and with the trace's.
void check_peaks_of_torch(const simulated_process& of, recording& into) {
  const auto index = of.torch["trace"].value("device", std::size_t{0});
  if (!of.torch.contains("cards") || index >= of.torch["cards"].size()) return;
  const auto peak = [&card = of.torch["cards"][index]](const char* name) { return card.value(name, std::uint64_t{0}); };
  if (const std::uint64_t reserved = peak("peak_reserved_bytes"); reserved != 0) {
    note_outside(of, reserved, "PyTorch's allocator", into);
  }
  // PyTorch counts a block that it did not split with all its bytes as allocated, and a block that a stream still uses
  // as requested. The smaller peak has neither.
  std::uint64_t live = peak("peak_allocated_bytes");
  if (const std::uint64_t requested = peak("peak_requested_bytes"); requested != 0) live = std::min(live, requested);
  if (live <= into.trace.peak_live_bytes + one_segment) return;
  into.warnings.push_back(fmt::format(
      "the prediction is of an incomplete record: PyTorch's tensors peaked at {}, its record of them at {}. Expected a "
      "program that leaves PyTorch's memory history alone (_record_memory_history)",
      format_bytes(live), format_bytes(into.trace.peak_live_bytes)));
}

/// The peak of gpumem's pools, from the figures of GPUMEM_STATS; empty if the process left without writing them. The
/// file that gpumem makes at its start has no peak yet.
std::optional<std::uint64_t> reserved_by_gpumem(const std::string& figures) {
  std::ifstream file{figures};
  const auto all = nlohmann::json::parse(file, nullptr, false);
  if (!all.is_object() || !all.contains("devices")) return std::nullopt;
  std::uint64_t out = 0;
  for (const auto& pool : all["devices"]) out += pool.value("peak_reserved_bytes", std::uint64_t{0});
  return out != 0 ? std::optional{out} : std::nullopt;
}

/// Runs the program again, served by gpumem, which records the trace and counts its own memory.
status record_by_gpumem(simulated_setup setup, const std::string& trace, const std::string& folder, recording& into) {
  const result<std::string> preload = find_preload();
  if (!preload) return preload.why();
  const std::string figures = folder + "/stats.json";
  setup.preload = *preload;
  setup.history.clear();
  setup.variables["GPUMEM_POLICY"] = "growth";
  setup.variables["GPUMEM_TRACE"] = trace;
  setup.variables["GPUMEM_STATS"] = figures;
  const result<simulated_outcome> ran = run_simulated(setup);
  if (!ran) return ran.why();
  if (status ok = check_one_recorded(*ran); !ok) return ok;
  const simulated_process* const process = largest(*ran);
  const std::optional<std::uint64_t> reserved = reserved_by_gpumem(figures);
  if (process == nullptr || !reserved) {
    return {
        errc::unsupported,
        "the program left no usable record: gpumem served no allocation of it, or the program was killed or left by "
        "_exit before gpumem wrote its figures"};
  }
  note_outside(*process, *reserved, "the allocations that gpumem serves", into);
  return {};
}

result<simulated_setup> setup_of(const predict_options& with, std::uint64_t context_bytes, const std::string& trace) {
  simulated_setup out;
  if (status ok = choose_card(with.card, out.card, out.card_bytes); !ok) return ok;
  out.variables["SIMCUDA_CUDNN_WORKSPACE"] = with.cudnn_workspace;
  out.card_bytes = room_for_everything;
  out.context_bytes = context_bytes;
  if (status ok = check_context(out, with.context); !ok) return ok;
  if (status ok = read_time(with.settle, "--settle", out.settle_s); !ok) return ok;
  out.output_to_stderr = true;
  out.command = with.command;
  out.history = trace;
  return out;
}

/// Runs the program. An `exit_status` other than 0 is the program's own and ends the prediction.
result<recording> record_run(const predict_options& with, std::uint64_t context_bytes, int& exit_status) {
  const temporary_folder folder{"gpumem-predict-"};
  if (folder.path().empty()) return status{errc::unsupported, "cannot create a folder in TMPDIR"};
  std::error_code error;
  const std::string trace =
      with.trace.empty() ? folder.path() + "/run.csv" : std::filesystem::absolute(with.trace, error).string();
  const result<simulated_setup> setup = setup_of(with, context_bytes, trace);
  if (!setup) return setup.why();
  std::filesystem::remove(trace, error);  // a run that fails leaves no trace of an earlier one
  recording out;
  result<simulated_outcome> ran = run_simulated(*setup);
  if (!ran) return ran.why();
  exit_status = ran->settled_reads == 0 ? ran->exit_status : 0;
  const simulated_process* const traced = take_trace(*ran, trace, !with.trace.empty(), out.warnings);
  const simulated_process* const process = traced != nullptr ? traced : largest(*ran);
  if (exit_status != 0 || process == nullptr) {
    const json figures = figures_of(*ran, *setup);
    std::string why = exit_status != 0 ? fmt::format("the program ended with status {}", exit_status) : "";
    for (const auto& each : figures["warnings"]) why += (why.empty() ? "" : "; ") + each.get<std::string>();
    return status{errc::unsupported, why};
  }
  out.by_torch = traced != nullptr;
  out.native_reserved_bytes = reserved_of(process->record.card[0]);
  out.host_values_read = process->record.host_values_read;
  out.processes = processes_with_memory(*ran);
  if (ran->settled_reads != 0) out.warnings.push_back(settled_warning(*ran, *setup));
  out.untrue_values = untrue_values_warning(*ran);
  if (std::string why = unsupported_warning(*ran); !why.empty()) out.warnings.push_back(std::move(why));
  if (!out.by_torch) {
    if (status ok = check_one_recorded(*ran); !ok) return ok;
    if (status ok = record_by_gpumem(*setup, trace, folder.path(), out); !ok) return ok;
  }
  result<bench::trace> loaded = bench::load_trace(trace);
  if (!loaded) return status{loaded.code(), "the program left no usable record: " + loaded.why().message()};
  out.trace = bench::with_refused(*loaded);
  out.trace.name = "run";
  if (out.by_torch) check_peaks_of_torch(*process, out);
  return out;
}

json native_row(const recording& of, std::uint64_t budget, const json& advice) {
  if (of.native_reserved_bytes <= budget) {
    return {{"fits", true}, {"peak_reserved_bytes", of.native_reserved_bytes}, {"by", "measured"}};
  }
  const auto model = std::find_if(advice.begin(), advice.end(),
                                  [](const json& row) { return row["policy"].get<std::string>() == "caching"; });
  const bool fits = model != advice.end() && (*model)["fits"].get<bool>();
  return {
      {"fits", fits},
      {"peak_reserved_bytes", fits ? (*model)["peak_reserved_bytes"].get<std::uint64_t>() : of.native_reserved_bytes},
      {"by", "replay of caching"}};
}

/// What is left of a capacity when `taken` bytes of it are used.
std::uint64_t rest_of(const capacity& of, std::uint64_t taken) { return of.bytes - std::min(taken, of.bytes); }

/// The rows of `advise` within the rest of a capacity, with the memory outside in their peaks.
status advice_within(const recording& of, std::uint64_t rest, const bench::own_plan& plan, json& out) {
  const bool any = rest >= one_segment;  // otherwise a replay of the least limit names the rows
  if (status done = advice_for(of.trace, std::max(rest, one_segment), plan, out); !done) return done;
  for (json& row : out) {
    if (!any) row["fits"] = false;
    row["peak_reserved_bytes"] = row["peak_reserved_bytes"].get<std::uint64_t>() + of.outside_bytes;
  }
  return {};
}

/// The variables of a row as the program needs them: PyTorch turns to gpumem by GPUMEM_TORCH. Elsewhere the limit has
/// to be on gpumem's pool, as in the replay; the default of a preloaded program is the whole process.
std::string settings_of(const recording& of, const json& row) {
  const auto set = row["set"].get<std::string>();
  return of.by_torch ? "GPUMEM_TORCH=1 " + set : set + " GPUMEM_LIMIT_SCOPE=pool";
}

status predict_all(const recording& of, const std::vector<capacity>& capacities, std::uint64_t context_bytes,
                   json& out) {
  const auto plan = bench::own_plan::make(of.trace, plan_time);
  if (!plan) return plan.why();
  out = json::array();
  for (const capacity& each : capacities) {
    const std::uint64_t budget = rest_of(each, context_bytes);
    json advice;
    if (status done = advice_within(of, rest_of(each, context_bytes + of.outside_bytes), *plan, advice); !done) {
      return done;
    }
    const auto add = [&](const std::string& policy, const json& row, const std::string& settings) {
      json line{{"capacity", each.name},
                {"capacity_bytes", each.bytes},
                {"policy", policy},
                {"fits", row["fits"]},
                {"peak_reserved_bytes", row["peak_reserved_bytes"]},
                {"settings", settings}};
      if (row.contains("by")) line["by"] = row["by"];
      out.push_back(std::move(line));
    };
    add("native", native_row(of, budget, advice), "");
    for (const json& row : advice) add(row["policy"], row, settings_of(of, row));
  }
  return {};
}

/// How to make the file that GPUMEM_PLAN names; empty if no row that fits follows a plan.
std::string plan_text(const json& rows, const std::string& trace) {
  const bool planned = std::any_of(rows.begin(), rows.end(), [](const json& row) {
    return row["fits"].get<bool>() && row["settings"].get<std::string>().find("GPUMEM_PLAN=") != std::string::npos;
  });
  if (!planned) return {};
  if (!trace.empty()) return fmt::format("\nplanned follows a plan of this run: gpumem plan {} -o run.plan\n", trace);
  return "\nplanned follows a plan of this run: predict --trace run.csv.gz keeps its allocations, and\n"
         "gpumem plan run.csv.gz -o run.plan makes the plan.\n";
}

std::string as_text(const json& all, const std::string& trace) {
  const auto bytes = [](const json& value) { return format_bytes(value.get<std::uint64_t>()); };
  std::string out =
      fmt::format("{} operations, {} live at the peak on {} (--card); context {} (assumed, --context). Simulated.\n\n",
                  all["ops"].get<std::uint64_t>(), bytes(all["peak_live_bytes"]), all["card"].get<std::string>(),
                  bytes(all["context_bytes"]));
  const bool untrue = !all["untrue_values"].is_null();
  if (untrue) {
    out +=
        fmt::format("Only if no size depends on untrue values (*): {}.\n\n", all["untrue_values"].get<std::string>());
  }
  const char* const mark = untrue ? "*" : "";
  std::vector<std::vector<std::string>> lines{{"<card", "<policy", "<fits", "peak reserved", "room", "<set"}};
  const std::uint64_t context = all["context_bytes"];
  const json& rows = all["results"];
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const json& row = rows[i];
    const auto of_another = [&](const json& other) { return other["capacity"] != row["capacity"]; };
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
  return out + table(lines) + plan_text(rows, trace);
}

}  // namespace

CLI::App* add_predict_command(CLI::App& to, predict_options& into) {
  CLI::App* const predict =
      to.add_subcommand("predict", "runs a program simulated once, then says which cards and policies would hold it");
  predict->footer(
      "The command and its arguments follow --: gpumem predict [OPTIONS] -- COMMAND...\n"
      "Example: gpumem predict --capacity 24GiB --capacity 80GiB -- python train.py");
  predict->add_option("--capacity", into.capacities, "memory (24GiB) or a card's name; may be repeated")
      ->type_name("C")
      ->allow_extra_args(false);
  predict->add_option("--card", into.card, "the card that the program sees, with ample memory (default h100)")
      ->type_name("NAME");
  predict->add_option("--context", into.context, "memory of a context on each card (default 450MiB)")
      ->type_name("SIZE");
  predict
      ->add_option("--trace", into.trace, "keep the run's allocations in this file, for plan, advise and gpumem_bench")
      ->type_name("F");
  add_cudnn_workspace_option(*predict, into.cudnn_workspace);
  add_settle_option(*predict, into.settle);
  predict->add_flag("--json", into.json, "as JSON; the program's own output goes to standard error either way");
  return predict;
}

int predict(const predict_options& with) {
  if (with.command.empty()) {
    return fail(bad_input, "predict: no command; expected gpumem predict [OPTIONS] -- COMMAND...");
  }
  const auto capacities = capacities_of(with);
  if (!capacities) return fail(bad_input, capacities.why().message());
  if (status ok = check_cudnn_workspace(with.cudnn_workspace); !ok) return fail(bad_input, ok.message());
  std::uint64_t context_bytes = 0;
  if (with.context != "0") {
    const result<std::uint64_t> bytes = parse_bytes(with.context, "--context");
    if (!bytes) return fail(bad_input, bytes.why().message());
    context_bytes = *bytes;
  }
  if (!with.trace.empty()) {
    if (status ok = check_output_file(with.trace, "--trace", true); !ok) return fail(bad_input, ok.message());
  }
  int exit_status = 0;
  const result<recording> ran = record_run(with, context_bytes, exit_status);
  if (!ran && ran.code() == errc::bad_setting) return fail(bad_input, ran.why().message());
  if (!ran) return fail(exit_status != 0 ? exit_status : failed, "predict: " + ran.why().message());
  json rows;
  if (status done = predict_all(*ran, *capacities, context_bytes, rows); !done) return fail(failed, done.message());
  const bool any = std::any_of(rows.begin(), rows.end(), [](const json& row) { return row["fits"].get<bool>(); });
  json all{{"schema", 1},
           {"card", with.card},
           {"simulated", true},
           {"ops", ran->trace.ops.size()},
           {"peak_live_bytes", ran->trace.peak_live_bytes},
           {"context_bytes", context_bytes},
           {"outside_bytes", ran->outside_bytes},
           {"host_values_read", ran->host_values_read},
           {"untrue_values", ran->untrue_values.empty() ? json(nullptr) : json(ran->untrue_values)},
           {"processes", ran->processes},
           {"warnings", ran->warnings},
           {"results", std::move(rows)}};
  const std::string text =
      with.json ? all.dump(2, ' ', false, nlohmann::json::error_handler_t::replace) + "\n" : as_text(all, with.trace);
  fmt::print("{}", visible(text));
  for (const std::string& warning : ran->warnings) print_error("gpumem: {}\n", visible(warning));
  if (!ran->untrue_values.empty()) print_error("gpumem: {}\n", visible(ran->untrue_values));
  return any ? 0 : nothing_fits;
}

}  // namespace gpumem::cli
