// A program with PyTorch runs once, while PyTorch records its allocations. A program without PyTorch runs a second
// time, and gpumem serves and records it.
//
// No trace contains memory taken outside the traced allocator (cudaMalloc in a PyTorch program, managed memory, mapped
// pages). It is the peak of all device memory less the peak that the traced allocator reserved.
#include "recorded_run.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <optional>
#include <sstream>

#include "assign_or_return.hpp"
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

/// The process with the highest peak on its first card; null if there is none.
const simulated_process* largest(const simulated_outcome& outcome) {
  const simulated_process* best = nullptr;
  for (const simulated_process& each : outcome.processes) {
    if (each.record.foreign_runtime != 0) continue;
    if (best == nullptr || each.record.card[0].peak_used_bytes > best->record.card[0].peak_used_bytes) best = &each;
  }
  return best;
}

std::uint64_t reserved_of(const simcuda::card_record& card) {
  const std::uint64_t own = card.context_bytes + card.modules_bytes + card.libraries_bytes;
  return card.peak_used_bytes - std::min(own, card.peak_used_bytes);
}

/// Sets `outside_bytes`: the driver's peak of all memory, less the traced allocator's own peak.
void note_outside(const simulated_process& process, std::uint64_t allocator_peak, std::string_view allocator,
                  recording& recorded) {
  const std::uint64_t all = reserved_of(process.record.card[0]);
  if (all <= allocator_peak) return;
  recorded.outside_bytes = all - allocator_peak;
  recorded.warnings.push_back(
      fmt::format("{} were taken outside {} (the peak of all device memory, {}, less its own, {}): every row's peak "
                  "includes them, and its GPUMEM_LIMIT leaves room for them",
                  format_bytes(recorded.outside_bytes), allocator, format_bytes(all), format_bytes(allocator_peak)));
}

/// Compares PyTorch's own peaks with the driver's and with the trace's.
void check_peaks_of_torch(const simulated_process& process, recording& recorded) {
  const auto index = process.torch["trace"].value("device", std::size_t{0});
  if (!process.torch.contains("cards") || index >= process.torch["cards"].size()) return;
  const auto peak = [&card = process.torch["cards"][index]](const char* name) {
    return card.value(name, std::uint64_t{0});
  };
  if (const std::uint64_t reserved = peak("peak_reserved_bytes"); reserved != 0) {
    note_outside(process, reserved, "PyTorch's allocator", recorded);
  }
  // PyTorch's peak of allocated bytes includes the unused rest of unsplit blocks; its peak of requested bytes includes
  // blocks that a stream still uses. The smaller peak is closer to the live bytes.
  std::uint64_t live = peak("peak_allocated_bytes");
  if (const std::uint64_t requested = peak("peak_requested_bytes"); requested != 0) live = std::min(live, requested);
  if (live <= recorded.trace.peak_live_bytes + one_segment) return;
  recorded.warnings.push_back(fmt::format(
      "the prediction is of an incomplete record: PyTorch's tensors peaked at {}, its record of them at {}. Expected a "
      "program that leaves PyTorch's memory history alone (_record_memory_history)",
      format_bytes(live), format_bytes(recorded.trace.peak_live_bytes)));
}

/// Warns if the program filled more than half of the run's large card. Such a program probably takes a share of the
/// card's memory, and then its peak says nothing about the memory that it needs.
void note_share_of_card(const simulated_process& process, recording& recorded) {
  const std::uint64_t taken = reserved_of(process.record.card[0]);
  if (taken <= room_for_everything / 2) return;
  recorded.warnings.push_back(fmt::format(
      "the program took {} of the {} that it saw. If it takes a share of a card, as vLLM, JAX and TensorFlow do by "
      "default, it takes less of a smaller one, which no row says: gpumem simulate --card NAME tells. Expected a "
      "program with an amount of its own (vLLM: num_gpu_blocks_override; JAX: XLA_PYTHON_CLIENT_PREALLOCATE=false; "
      "TensorFlow: TF_FORCE_GPU_ALLOW_GROWTH=true)",
      format_bytes(taken), format_bytes(room_for_everything)));
}

/// The peak of gpumem's pools, from the file of GPUMEM_STATS. Empty if the process ended without writing its figures:
/// the file that gpumem creates at its start has no peak.
std::optional<std::uint64_t> reserved_by_gpumem(const std::string& figures) {
  std::ifstream file{figures};
  const auto all = nlohmann::json::parse(file, nullptr, false);
  if (!all.is_object() || !all.contains("devices")) return std::nullopt;
  std::uint64_t total = 0;
  for (const auto& pool : all["devices"]) total += pool.value("peak_reserved_bytes", std::uint64_t{0});
  return total != 0 ? std::optional{total} : std::nullopt;
}

/// Whether PyTorch counted a request that its allocator refused.
bool was_refused_by_torch(const json& torch) {
  if (!torch.is_object() || !torch.contains("cards")) return false;
  return std::ranges::any_of(torch["cards"], [](const json& card) { return card.value("ooms", 0) != 0; });
}

/// Runs the program again, served by gpumem, which records the trace and counts its own memory.
status record_by_gpumem(simulated_setup setup, const std::string& trace, const std::string& folder,
                        recording& recorded) {
  ASSIGN_OR_RETURN(const auto preload, find_preload());
  const std::string figures = folder + "/stats.json";
  setup.preload = preload;
  setup.history.clear();
  setup.variables["GPUMEM_POLICY"] = "growth";
  setup.variables["GPUMEM_TRACE"] = trace;
  setup.variables["GPUMEM_STATS"] = figures;
  ASSIGN_OR_RETURN(const auto ran, run_simulated(setup));
  if (status ok = check_one_recorded(ran); !ok) return ok;
  const simulated_process* const process = largest(ran);
  const std::optional<std::uint64_t> reserved = reserved_by_gpumem(figures);
  if (process == nullptr || !reserved) {
    return {
        errc::unsupported,
        "the program left no usable record: gpumem served no allocation of it, or the program was killed or left by "
        "_exit before gpumem wrote its figures"};
  }
  note_outside(*process, *reserved, "the allocations that gpumem serves", recorded);
  return {};
}

result<simulated_setup> setup_of(const recorded_run_options& options, std::uint64_t context_bytes,
                                 const std::string& trace) {
  simulated_setup setup;
  if (status ok = choose_card(options.card, setup.card, setup.card_bytes); !ok) return ok;
  setup.variables["SIMCUDA_CUDNN_WORKSPACE"] = options.cudnn_workspace;
  setup.card_bytes = room_for_everything;
  setup.context_bytes = context_bytes;
  if (status ok = check_context(setup, options.context); !ok) return ok;
  setup.variables["SIMCUDA_VALUES"] = fmt::format("{}", options.values);
  if (status ok = read_time(options.settle, "--settle", setup.settle_s); !ok) return ok;
  setup.output_to_stderr = true;
  setup.command = options.command;
  setup.history = trace;
  return setup;
}

}  // namespace

result<std::uint64_t> check_recorded_run(const recorded_run_options& options) {
  std::string card;
  std::uint64_t card_bytes = 0;
  if (status ok = choose_card(options.card, card, card_bytes); !ok) return ok;
  if (status ok = check_cudnn_workspace(options.cudnn_workspace); !ok) return ok;
  if (!options.trace.empty()) {
    if (status ok = bench::check_output_file(options.trace, "--trace", true); !ok) return ok;
  }
  return options.context == "0" ? 0 : parse_bytes(options.context, "--context");
}

result<recording> record_run(const recorded_run_options& options, std::uint64_t context_bytes, int& exit_status) {
  const temporary_folder folder{"gpumem-predict-"};
  if (folder.path().empty()) return status{errc::unsupported, "cannot create a folder in TMPDIR"};
  std::error_code error;
  const std::string trace =
      options.trace.empty() ? folder.path() + "/run.csv" : std::filesystem::absolute(options.trace, error).string();
  ASSIGN_OR_RETURN(const auto setup, setup_of(options, context_bytes, trace));
  std::filesystem::remove(trace, error);  // a run that fails leaves no trace of an earlier one
  recording recorded;
  ASSIGN_OR_RETURN(auto ran, run_simulated(setup));
  if (!ran.stopped.empty()) return status{errc::unsupported, ran.stopped};
  exit_status = ran.settled_reads == 0 ? ran.exit_status : 0;
  recorded.host_bytes = ran.host_bytes;
  const simulated_process* const traced = take_trace(ran, trace, !options.trace.empty(), recorded.warnings);
  const simulated_process* const process = traced != nullptr ? traced : largest(ran);
  if (exit_status != 0 || process == nullptr) {
    const json figures = figures_of(ran, setup);
    std::string why = exit_status != 0 ? fmt::format("the program ended with status {}", exit_status) : "";
    for (const auto& each : figures["warnings"]) why += (why.empty() ? "" : "; ") + each.get<std::string>();
    return status{errc::unsupported, why};
  }
  recorded.by_torch = traced != nullptr;
  recorded.may_be_served =
      ran.settled_reads == 0 && (!recorded.by_torch || process->torch.value("gpumem_is_installed", false));
  recorded.native_reserved_bytes = reserved_of(process->record.card[0]);
  recorded.host_values_read = process->record.host_values_read;
  recorded.processes = processes_with_memory(ran);
  note_share_of_card(*process, recorded);
  if (ran.settled_reads != 0) recorded.warnings.push_back(settled_warning(ran, setup));
  recorded.untrue_values = untrue_values_warning(ran);
  if (std::string why = unsupported_warning(ran); !why.empty()) recorded.warnings.push_back(std::move(why));
  if (!recorded.by_torch) {
    if (status ok = check_one_recorded(ran); !ok) return ok;
    if (status ok = record_by_gpumem(setup, trace, folder.path(), recorded); !ok) return ok;
  }
  result<bench::trace> loaded = bench::load_trace(trace);
  if (!loaded) return status{loaded.code(), "the program left no usable record: " + loaded.why().message()};
  recorded.trace = bench::with_refused(*loaded);
  recorded.trace.name = "run";
  if (recorded.by_torch) check_peaks_of_torch(*process, recorded);
  return recorded;
}

result<measured_peak> measure_served(const recorded_run_options& options, std::uint64_t context_bytes,
                                     const capacity& card, const recording& recorded, const std::string& variables,
                                     int& exit_status) {
  const temporary_folder folder{"gpumem-predict-"};
  if (folder.path().empty()) return status{errc::unsupported, "cannot create a folder in TMPDIR"};
  ASSIGN_OR_RETURN(auto setup, setup_of(options, context_bytes, ""));
  const std::string figures = folder.path() + "/stats.json";
  std::string key;
  std::uint64_t bytes_alone = 0;
  if (status ok = choose_card(card.name, key, bytes_alone); !ok) return ok;
  if (bytes_alone == 0) setup.card = key;
  setup.card_bytes = bytes_alone;
  setup.runs_again = true;
  std::istringstream words{variables};
  for (std::string word; words >> word;) {
    const std::size_t equals = word.find('=');
    setup.variables[word.substr(0, equals)] = word.substr(equals + 1);
  }
  if (!recorded.by_torch) {
    ASSIGN_OR_RETURN(setup.preload, find_preload());
    setup.variables["GPUMEM_STATS"] = figures;
  }
  ASSIGN_OR_RETURN(const auto ran, run_simulated(setup));
  if (!ran.stopped.empty()) return status{errc::unsupported, ran.stopped};
  exit_status = ran.exit_status;
  measured_peak served;
  bool by_gpumem = !recorded.by_torch && reserved_by_gpumem(figures).has_value();
  for (const simulated_process& each : ran.processes) {
    if (each.record.foreign_runtime != 0) continue;
    const bool under_torch = each.torch.is_object() && each.torch.value("allocator", "") == "gpumem";
    if (recorded.by_torch && !under_torch) continue;
    by_gpumem = by_gpumem || under_torch;
    served.peak_bytes = std::max(served.peak_bytes, reserved_of(each.record.card[0]));
    // gpumem recovers from a refusal of the driver, but a program that fails after one has run out of memory.
    const bool failed_for_memory = ran.exit_status != 0 && each.record.refusals != 0;
    served.ran_out = served.ran_out || failed_for_memory || was_refused_by_torch(each.torch);
  }
  if (by_gpumem && served.ran_out) return served;
  if (ran.exit_status != 0 || ran.settled_reads != 0) {
    return status{errc::unsupported, fmt::format("the program ended with status {}", ran.exit_status)};
  }
  if (!by_gpumem) return status{errc::unsupported, "gpumem served no allocation of the program"};
  const std::uint64_t live_bytes = recorded.trace.peak_live_bytes + recorded.outside_bytes;
  if (served.peak_bytes < live_bytes) {
    return status{errc::unsupported, fmt::format("it held {}, and the recorded run {}: it did not do the same",
                                                 format_bytes(served.peak_bytes), format_bytes(live_bytes))};
  }
  return served;
}

}  // namespace gpumem::cli
