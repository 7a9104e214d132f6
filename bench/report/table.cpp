/// Tables: one block a trace, columns as wide as their widest cell.
#include <fmt/format.h>

#include <algorithm>
#include <string_view>

#include "gpumem/settings.hpp"
#include "report.hpp"
#include "text.hpp"
#include "text_table.hpp"

namespace gpumem::bench {
namespace {

using cells = std::vector<std::string>;

/// Groups rows under their trace.
class grouped_table {
 public:
  explicit grouped_table(cells header) : rows_{std::move(header)}, traces_{nullptr} {}

  void add(const trace& recorded, cells row) {
    rows_.push_back(std::move(row));
    traces_.push_back(&recorded);
  }

  [[nodiscard]] std::string text() const {
    const std::vector<std::string> lines = table_lines(rows_);
    std::string blocks;
    for (std::size_t i = 1; i < rows_.size(); ++i) {
      if (traces_[i] != traces_[i - 1]) {
        const trace& recorded = *traces_[i];
        blocks += fmt::format("{}{}: {} operations, {} live at the peak\n", i > 1 ? "\n" : "", recorded.name,
                              recorded.ops.size(), format_bytes(recorded.peak_live_bytes));
        blocks += fmt::format("  {}\n", lines.front());
      }
      blocks += fmt::format("  {}\n", lines[i]);
    }
    return blocks;
  }

 private:
  std::vector<cells> rows_;
  std::vector<const trace*> traces_;
};

std::string fixed(const std::optional<double>& value, int digits) {
  return value ? fmt::format("{:.{}f}", *value, digits) : "-";
}

std::string percent(double share) { return fmt::format("{:.1f}%", share * 100); }

std::string memory_calls(const std::optional<call_counts>& known) {
  if (!known) return "-";
  return fmt::format("{}", memory_calls_of(*known));
}

/// Calls and modelled milliseconds from the middle of the replay on.
std::string second_half(const std::optional<half_figures>& half) {
  if (!half) return "-";
  return fmt::format("{} {:.2f}", half->memory_calls, static_cast<double>(half->in_device_calls_ns) / 1e6);
}

/// Million operations a second of `growth` over all traces, and the slowest trace.
std::string speed_line(const std::vector<compare_result>& results) {
  double ops = 0;
  double ns = 0;
  const compare_result* slowest = nullptr;
  for (const compare_result& each : results) {
    if (each.row->text != "growth" || !each.figures.host_ns_per_op) continue;
    const auto done = static_cast<double>(each.figures.outcome.ops);
    ops += done;
    ns += done * *each.figures.host_ns_per_op;
    if (slowest == nullptr || *each.figures.host_ns_per_op > *slowest->figures.host_ns_per_op) slowest = &each;
  }
  if (slowest == nullptr || ns == 0) return "";
  return fmt::format("growth replays at {:.1f} million operations a second (slowest trace {}: {:.1f})\n",
                     ops / ns * 1e3, slowest->recorded->name, 1e3 / *slowest->figures.host_ns_per_op);
}

std::optional<double> modelled_ms(const compare_figures& figures) {
  if (!figures.in_device_calls_ns) return std::nullopt;
  return static_cast<double>(*figures.in_device_calls_ns) / 1e6;
}

/// Explains the baselines among the rows, if any.
std::string baseline_line(const std::vector<compare_result>& results, const replay_setup& setup) {
  const auto has = [&](std::string_view kind) {
    return std::any_of(results.begin(), results.end(), [&](const auto& each) { return each.row->baseline == kind; });
  };
  const bool simulated = !setup.cuda || setup.cuda->info.simulated;
  std::string line;
  if (has("cub")) {
    line += "cub is cub::CachingDeviceAllocator with settings that cache every size, cub_default with its own; ";
  }
  if (simulated && has("cuda_malloc_async")) {
    line += "cuda_malloc_async is a model of the driver's pool; ";
  }
  if (!simulated && has("cuda_malloc")) {
    line += fmt::format("cuda_malloc replays the first {} operations of a trace; ", raw_prefix_ops);
  }
  if (simulated && std::any_of(results.begin(), results.end(),
                               [](const auto& candidate) { return !candidate.row->baseline.empty(); })) {
    line += "baselines are simulated as well, over a double of the CUDA driver; ";
  }
  if (line.empty()) return line;
  line.replace(line.size() - 2, 2, ".\n");
  return line;
}

/// The versions of the other packages among the rows, each once.
template <typename row_result>
std::string peer_line(const std::vector<row_result>& results) {
  std::string line;
  for (const row_result& each : results) {
    const policy_row& row = *each.row;
    if (row.version.empty() || each.recorded != results.front().recorded) continue;
    line += fmt::format("{}{} is the allocator of {}", line.empty() ? "" : "; ", row.text, row.version);
  }
  return line.empty() ? line : line + ", its own code.\n";
}

/// Explains rows with several tenants, each once.
template <typename row_result>
std::string tenants_line(const std::vector<row_result>& results) {
  std::string line;
  for (const row_result& each : results) {
    const policy_row& row = *each.row;
    if (row.tenants < 2 || each.recorded != results.front().recorded) continue;
    line +=
        fmt::format("{} replays the trace {} times at once, half a trace out of step{}; its figures are of the sum.\n",
                    row.text, row.tenants, row.config.pools.size() > 1 ? ", one tenant to a pool" : "");
  }
  return line;
}

/// Explains default rows that get a share of the device.
std::string share_line(const std::vector<compare_result>& results) {
  const bool some = std::any_of(results.begin(), results.end(),
                                [](const auto& each) { return each.row->text == "hard_cap,limit=50%"; });
  return some ? "hard_cap,limit=50% has half of the device.\n" : "";
}

/// Explains rows that follow a plan made from their own trace.
template <typename row_result>
std::string plan_line(const std::vector<row_result>& results) {
  const bool some = std::any_of(results.begin(), results.end(), [](const auto& each) { return each.row->own_plan; });
  return some ? "planned follows a plan made from the same trace (GPUMEM_PLAN names another).\n" : "";
}

std::string device_line(const replay_setup& setup) {
  const sim_config& device = setup.device;
  if (setup.cuda && !setup.cuda->info.simulated) {
    return fmt::format(
        "Measured on {} ({}, compute capability {}.{}); replay ns/op is wall-clock time, on idle streams.", device.name,
        format_bytes(device.capacity_bytes), device.compute_major, device.compute_minor);
  }
  return fmt::format(
      "Simulated, on a device of {}, compute capability {}.{}; only replay ns/op is measured (processor time).",
      format_bytes(device.capacity_bytes), device.compute_major, device.compute_minor);
}

}  // namespace

std::string compare_table(const std::vector<compare_result>& results, const replay_setup& setup) {
  const bool loop =
      std::any_of(results.begin(), results.end(), [](const auto& each) { return !each.row->peer.empty(); });
  cells header{"<policy",      "peak live",   "peak reserved",      "waste MiB", "utilization", "fit",
               "device calls", "modelled ms", "2nd half: calls ms", "ext. frag", "int. frag",   "hazards",
               "replay ns/op", "oom"};
  if (loop) header.insert(header.end() - 1, "loop ns/op");
  grouped_table table{header};
  for (const compare_result& each : results) {
    const compare_figures& figures = each.figures;
    const replay_outcome& outcome = figures.outcome;
    if (!each.failed.empty()) {
      cells row(header.size() - 1, "-");
      row.front() = each.row->text;
      row.push_back("failed: " + printable(each.failed, 160));
      table.add(*each.recorded, std::move(row));
      continue;
    }
    cells row{each.row->text,
              format_bytes(outcome.peak_live_bytes),
              format_bytes(figures.peak_reserved_bytes),
              fmt::format("{:.1f}", static_cast<double>(figures.waste_bytes()) / (1 << 20)),
              fixed(figures.utilization(), 3),
              fixed(each.fit ? each.fit->utilization() : std::nullopt, 3),
              memory_calls(figures.calls),
              fixed(modelled_ms(figures), 2),
              second_half(figures.second_half),
              each.row->baseline.empty() ? percent(outcome.at_peak.external) : "-",
              percent(outcome.at_peak.internal),
              figures.hazards ? fmt::format("{}", *figures.hazards) : "-",
              fixed(figures.host_ns_per_op, 0),
              outcome.oom ? fmt::format("{} at {}", to_string(outcome.cause), outcome.ops) : "-"};
    if (loop) row.insert(row.end() - 1, fixed(figures.loop_ns_per_op, 1));
    table.add(*each.recorded, std::move(row));
  }
  return fmt::format("{}\n{} Lag {:g} ms, {:g}% shared use, seed {}.\n{}", table.text(), device_line(setup),
                     static_cast<double>(setup.lag_ns) / 1e6, setup.shared_use * 100, setup.seed,
                     speed_line(results) + baseline_line(results, setup) + peer_line(results) + plan_line(results) +
                         tenants_line(results) + share_line(results));
}

std::string fit_table(const std::vector<fit_result>& results, const replay_setup& setup) {
  grouped_table table{{"<policy", "peak live", "smallest capacity", "utilization"}};
  bool some_do_not_fit = false;
  for (const fit_result& each : results) {
    const fit_figures& figures = each.figures;
    if (!each.failed.empty()) {
      table.add(*each.recorded, {each.row->text, "-", "-", "failed: " + printable(each.failed, 160)});
      continue;
    }
    some_do_not_fit |= !figures.min_capacity_bytes;
    table.add(*each.recorded,
              {each.row->text, format_bytes(figures.peak_live_bytes),
               figures.min_capacity_bytes ? format_bytes(*figures.min_capacity_bytes) : "over 1.5 x peak live",
               fixed(figures.utilization(), 3)});
  }
  return fmt::format(
      "{}\nSimulated, each capacity on a new device without a reserve. Lag {:g} ms, {:g}% shared "
      "use, seed {}.\n{}{}",
      table.text(), static_cast<double>(setup.lag_ns) / 1e6, setup.shared_use * 100, setup.seed,
      some_do_not_fit ? "Rows without a capacity do not fit even 1.5 times the peak.\n" : "",
      plan_line(results) + tenants_line(results) + peer_line(results));
}

}  // namespace gpumem::bench
