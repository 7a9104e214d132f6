/// JSON and CSV. The CSV is the flattened results of the JSON, so the two cannot differ.
#include <fmt/format.h>

#include <iterator>
#include <nlohmann/json.hpp>

#include "report.hpp"

namespace gpumem::bench {
namespace {

using json = nlohmann::ordered_json;

template <typename value>
json or_null(const std::optional<value>& number) {
  return number ? json(*number) : json(nullptr);
}

bool is_simulated(const replay_setup& setup) { return !setup.cuda || setup.cuda->info.simulated; }

json header(std::string_view command, const replay_setup& setup) {
  const sim_config& device = setup.device;
  const bool simulated = is_simulated(setup);
  return {{"schema", 1},
          {"command", command},
          {"simulated", simulated},
          {"device",
           {{"kind", setup.cuda ? "cuda" : "sim"},
            {"name", device.name},
            {"simulated", simulated},
            {"total_bytes", device.capacity_bytes},
            {"granularity_bytes", device.granularity_bytes},
            {"page_bytes", device.page_bytes},
            {"compute_capability", fmt::format("{}.{}", device.compute_major, device.compute_minor)}}},
          {"lag_ns", setup.lag_ns},
          {"shared_use", setup.shared_use},
          {"seed", setup.seed},
          {"results", json::array()}};
}

json call_figures(const std::optional<call_counts>& known) {
  const auto count = [&](device_call kind) -> json {
    if (!known) return nullptr;
    return (*known)[static_cast<std::size_t>(kind)];
  };
  const auto both = [&](device_call first, device_call second) -> json {
    if (!known) return nullptr;
    return (*known)[static_cast<std::size_t>(first)] + (*known)[static_cast<std::size_t>(second)];
  };
  return {{"alloc", count(device_call::alloc)},
          {"free", count(device_call::free)},
          {"map", count(device_call::map)},
          {"unmap", count(device_call::unmap)},
          {"synchronize", count(device_call::synchronize)},
          {"record", both(device_call::record, device_call::record_context)},
          {"query", count(device_call::query)},
          {"wait_host", count(device_call::wait_host)},
          {"wait_stream", count(device_call::wait_stream)}};
}

json pages_of(const std::optional<page_figures>& pages, std::uint64_t page_figures::*count) {
  return pages ? json(*pages.*count) : json(nullptr);
}

/// Samples about 160 operations, including the first, the last, and the one with the peak of live.
json over_time(const history& shown) {
  json series{{"op", json::array()},
              {"live_bytes", json::array()},
              {"reserved_bytes", json::array()},
              {"internal_fragmentation", json::array()},
              {"external_fragmentation", json::array()},
              {"largest_hole_bytes", json::array()},
              {"holes", json::array()}};
  for (const map_frame& each : shown.frames) {
    series["op"].push_back(each.op);
    series["live_bytes"].push_back(each.live_bytes);
    series["reserved_bytes"].push_back(each.reserved_bytes);
    series["internal_fragmentation"].push_back(each.internal_fragmentation());
    series["external_fragmentation"].push_back(each.external_fragmentation());
    series["largest_hole_bytes"].push_back(each.largest_hole_bytes);
    series["holes"].push_back(each.holes);
  }
  return series;
}

/// A failed baseline has no figures.
void clear_figures(json& row) {
  for (auto& [key, value] : row.items()) {
    if (value.is_object()) {
      for (auto& [name, count] : value.items()) count = nullptr;
    } else if (value.is_number() && key != "ops" && key != "tenants") {
      value = nullptr;
    }
  }
}

json half_of(const std::optional<half_figures>& half) {
  return {{"device_calls", half ? json(half->memory_calls) : json(nullptr)},
          {"modelled_device_ms", half ? json(static_cast<double>(half->in_device_calls_ns) / 1e6) : json(nullptr)}};
}

/// The version of the row's package; null unless the allocator is from another package.
json version_of(const policy_row& row) { return row.version.empty() ? json(nullptr) : json(row.version); }

json compare_row(const compare_result& each, const replay_setup& setup) {
  const compare_figures& figures = each.figures;
  const replay_outcome& outcome = figures.outcome;
  const bool baseline = !each.row->baseline.empty();  // baselines do not report free memory
  json row{{"trace", each.recorded->name},
           {"policy", each.row->text},
           {"simulated", is_simulated(setup)},
           {"model", each.row->baseline == "cuda_malloc_async" && is_simulated(setup)},
           {"tenants", each.row->tenants},
           {"own_plan", each.row->own_plan},
           {"prefix_ops", or_null(figures.prefix_ops)},
           {"ops", each.recorded->ops.size() * each.row->tenants},
           {"peak_live_bytes", outcome.peak_live_bytes},
           {"peak_reserved_bytes", figures.peak_reserved_bytes},
           {"waste_bytes", figures.waste_bytes()},
           {"utilization", figures.utilization()},
           {"fit_utilization", each.fit ? or_null(each.fit->utilization()) : json(nullptr)},
           {"device_calls", call_figures(figures.calls)},
           {"mapped_pages", pages_of(figures.pages, &page_figures::mapped)},
           {"remapped_pages", pages_of(figures.pages, &page_figures::remapped)},
           {"internal_fragmentation", outcome.at_peak.internal},
           {"external_fragmentation", baseline ? json(nullptr) : json(outcome.at_peak.external)},
           {"largest_free_bytes", baseline ? json(nullptr) : json(outcome.at_peak.largest_free_bytes)},
           {"hazards", or_null(figures.hazards)},
           {"host_ns_per_op", or_null(figures.host_ns_per_op)},
           {"loop_ns_per_op", or_null(figures.loop_ns_per_op)},
           {"version", version_of(*each.row)},
           {"modelled_device_ms",
            figures.in_device_calls_ns ? json(static_cast<double>(*figures.in_device_calls_ns) / 1e6) : json(nullptr)},
           {"second_half", half_of(figures.second_half)},
           {"oom", outcome.oom},
           {"oom_at_op", outcome.oom ? json(outcome.ops) : json(nullptr)},
           {"oom_cause", outcome.oom ? json(to_string(outcome.cause)) : json(nullptr)}};
  row["failed"] = each.failed.empty() ? json(nullptr) : json(each.failed);
  if (!each.failed.empty()) clear_figures(row);
  if (each.over_time) row["over_time"] = over_time(*each.over_time);
  return row;
}

json failures_of(const fit_figures& figures) {
  json failures = json::array();
  for (const first_failure& each : figures.failures) {
    failures.push_back({{"percent_of_peak", each.percent_of_peak},
                        {"capacity_bytes", each.capacity_bytes},
                        {"oom_at_op", or_null(each.at_op)}});
  }
  return failures;
}

json fit_row_of(const fit_result& each) {
  json row{{"trace", each.recorded->name},
           {"policy", each.row->text},
           {"simulated", true},
           {"tenants", each.row->tenants},
           {"own_plan", each.row->own_plan},
           {"peak_live_bytes", each.figures.peak_live_bytes},
           {"min_capacity_bytes", or_null(each.figures.min_capacity_bytes)},
           {"utilization", or_null(each.figures.utilization())},
           {"first_failures", failures_of(each.figures)},
           {"version", version_of(*each.row)},
           {"failed", each.failed.empty() ? json(nullptr) : json(each.failed)}};
  if (!each.failed.empty()) clear_figures(row);
  return row;
}

json compare_rows(const std::vector<compare_result>& results, const replay_setup& setup) {
  json rows = json::array();
  for (const compare_result& each : results) rows.push_back(compare_row(each, setup));
  return rows;
}

json fit_rows(const std::vector<fit_result>& results) {
  json rows = json::array();
  for (const fit_result& each : results) rows.push_back(fit_row_of(each));
  return rows;
}

/// Formats JSON. Replaces invalid UTF-8, which file names may contain.
std::string text_of(const json& value, int indent) {
  return value.dump(indent, ' ', false, json::error_handler_t::replace);
}

std::string csv_field(const json& value) {
  if (value.is_null()) return "";
  if (!value.is_string()) return text_of(value, -1);
  const auto text = value.get<std::string>();
  if (text.find_first_of(",\"\n\r") == std::string::npos) return text;
  std::string field = "\"";
  for (const char c : text) field += c == '"' ? std::string{"\"\""} : std::string{c};
  return field + "\"";
}

/// Objects within a row become columns named `outer_inner`.
std::string csv_of(const json& rows) {
  std::string names;
  std::string lines;
  for (const json& row : rows) {
    std::string line;
    const bool first_row = names.empty();
    const auto add = [&](const std::string& name, const json& value) {
      if (first_row) fmt::format_to(std::back_inserter(names), "{}{}", names.empty() ? "" : ",", name);
      fmt::format_to(std::back_inserter(line), "{}{}", line.empty() ? "" : ",", csv_field(value));
    };
    for (const auto& [name, value] : row.items()) {
      if (value.is_object()) {
        for (const auto& [inner, inner_value] : value.items()) add(name + "_" + inner, inner_value);
      } else {
        add(name, value);
      }
    }
    lines += line + "\n";
  }
  return names + "\n" + lines;
}

std::string document(json head, json rows) {
  head["results"] = std::move(rows);
  return text_of(head, 2) + "\n";
}

}  // namespace

std::string compare_json(const std::vector<compare_result>& results, const replay_setup& setup) {
  return document(header("compare", setup), compare_rows(results, setup));
}
std::string fit_json(const std::vector<fit_result>& results, const replay_setup& setup) {
  return document(header("fit", setup), fit_rows(results));
}
std::string compare_csv(const std::vector<compare_result>& results, const replay_setup& setup) {
  return csv_of(compare_rows(results, setup));
}
std::string fit_csv(const std::vector<fit_result>& results) {
  json rows = fit_rows(results);
  for (json& row : rows) row.erase("first_failures");  // lists have no columns
  return csv_of(rows);
}

}  // namespace gpumem::bench
