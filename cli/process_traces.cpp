#include "process_traces.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>

#include "units.hpp"

namespace gpumem::cli {
namespace {

namespace fs = std::filesystem;
constexpr int most_named = 8;

/// The peak of memory requested from the driver. Excludes the context, which every process has.
std::uint64_t peak_of(const simulated_process& process) {
  std::uint64_t peak = 0;
  for (const simcuda::card_record& card : process.record.card) peak = std::max(peak, card.peak_live_bytes);
  return peak;
}

nlohmann::json* trace_of(simulated_process& process) {
  if (!process.torch.is_object() || !process.torch.contains("trace")) return nullptr;
  return &process.torch["trace"];
}

std::string name_others(simulated_outcome& outcome, const simulated_process& taken, bool kept) {
  std::string text;
  int named = 0;
  for (simulated_process& each : outcome.processes) {
    if (&each == &taken || peak_of(each) == 0) continue;
    if (++named > most_named) continue;
    const nlohmann::json* const trace = trace_of(each);
    const std::string where = trace == nullptr ? ", no record" : kept ? ", in " + trace->value("file", "") : "";
    text +=
        fmt::format("{}process {} ({}{})", named == 1 ? "" : ", ", each.record.pid, format_bytes(peak_of(each)), where);
  }
  if (named > most_named) text += fmt::format(" and {} more", named - most_named);
  return text;
}

}  // namespace

std::size_t processes_with_memory(const simulated_outcome& outcome) {
  return static_cast<std::size_t>(std::count_if(outcome.processes.begin(), outcome.processes.end(),
                                                [](const auto& each) { return peak_of(each) != 0; }));
}

const simulated_process* take_trace(simulated_outcome& outcome, const std::string& path, bool others_kept,
                                    std::vector<std::string>& warnings) {
  simulated_process* taken = nullptr;
  std::uint64_t largest = 0;
  for (simulated_process& each : outcome.processes) {
    largest = std::max(largest, peak_of(each));
    if (trace_of(each) != nullptr && (taken == nullptr || peak_of(each) > peak_of(*taken))) taken = &each;
  }
  if (taken == nullptr) return nullptr;
  nlohmann::json& trace = *trace_of(*taken);
  std::error_code error;
  fs::rename(trace.value("file", ""), path, error);
  if (error) return nullptr;
  trace["file"] = path;
  if (const std::string note = name_others(outcome, *taken, others_kept); !note.empty()) {
    warnings.push_back(fmt::format(
        "{} processes took memory of the card; the trace is of process {}, with the largest peak{} ({}). Not in it: {}",
        processes_with_memory(outcome), taken->record.pid, peak_of(*taken) < largest ? " of those with a record" : "",
        format_bytes(peak_of(*taken)), note));
  }
  if (const int cards = trace.value("cards", 1); cards > 1) {
    warnings.push_back(
        fmt::format("the program allocated on {} cards; the trace is of card {}", cards, trace.value("device", 0)));
  }
  return taken;
}

status check_one_recorded(const simulated_outcome& outcome) {
  const std::size_t processes = processes_with_memory(outcome);
  if (processes < 2) return {};
  return {errc::unsupported,
          fmt::format("no usable trace: {} processes took memory of the card, and gpumem records one; give each a run "
                      "of its own, with --shared NAME if they share the card",
                      processes)};
}

std::string why_no_trace(const simulated_outcome& outcome) {
  for (const simulated_process& each : outcome.processes) {
    if (!each.torch.is_object()) continue;
    for (const char* key : {"trace_error", "error"}) {
      if (each.torch.contains(key)) return each.torch.value(key, "");
    }
    if (const std::string allocator_name = each.torch.value("allocator", "native"); allocator_name != "native") {
      return fmt::format("PyTorch left no record, because its allocator was {}; expected native", allocator_name);
    }
    if (!each.torch.contains("trace")) return "PyTorch allocated nothing on a card";
  }
  return {};
}

}  // namespace gpumem::cli
