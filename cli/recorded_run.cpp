// A program with PyTorch runs once, with PyTorch's record of its allocations on. A program without PyTorch runs once
// more, served and recorded by gpumem.
//
// Memory past that allocator (of cudaMalloc in a PyTorch program, managed memory, memory of pages) is in no trace. It
// is the difference of two peaks: of all device memory, and of the memory that the traced allocator had reserved.
#include "recorded_run.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <optional>

#include "output_file.hpp"
#include "process_traces.hpp"
#include "run.hpp"
#include "simulated_run.hpp"
#include "simulated_text.hpp"
#include "temporary_folder.hpp"
#include "text.hpp"
#include "units.hpp"

namespace gpumem::cli {
namespace {

using json = nlohmann::ordered_json;

constexpr std::uint64_t room_for_everything = std::uint64_t{1} << 40;
constexpr std::uint64_t one_segment = std::uint64_t{2} << 20;

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

result<simulated_setup> setup_of(const recorded_run_options& with, std::uint64_t context_bytes,
                                 const std::string& trace) {
  simulated_setup out;
  if (status ok = choose_card(with.card, out.card, out.card_bytes); !ok) return ok;
  out.variables["SIMCUDA_CUDNN_WORKSPACE"] = with.cudnn_workspace;
  out.card_bytes = room_for_everything;
  out.context_bytes = context_bytes;
  if (status ok = check_context(out, with.context); !ok) return ok;
  out.variables["SIMCUDA_VALUES"] = fmt::format("{}", with.values);
  if (status ok = read_time(with.settle, "--settle", out.settle_s); !ok) return ok;
  out.output_to_stderr = true;
  out.command = with.command;
  out.history = trace;
  return out;
}

}  // namespace

result<std::uint64_t> check_recorded_run(const recorded_run_options& with) {
  std::string card;
  std::uint64_t card_bytes = 0;
  if (status ok = choose_card(with.card, card, card_bytes); !ok) return ok;
  if (status ok = check_cudnn_workspace(with.cudnn_workspace); !ok) return ok;
  if (!with.trace.empty()) {
    if (status ok = check_output_file(with.trace, "--trace", true); !ok) return ok;
  }
  return with.context == "0" ? 0 : parse_bytes(with.context, "--context");
}

result<recording> record_run(const recorded_run_options& with, std::uint64_t context_bytes, int& exit_status) {
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
  if (!ran->stopped.empty()) return status{errc::unsupported, ran->stopped};
  exit_status = ran->settled_reads == 0 ? ran->exit_status : 0;
  out.host_bytes = ran->host_bytes;
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

}  // namespace gpumem::cli
