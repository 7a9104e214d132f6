#include "protocol.hpp"

namespace gpumem::bench::peers {
namespace {

template <typename value>
json or_null(const std::optional<value>& of) {
  return of ? json(*of) : json(nullptr);
}

std::optional<std::uint64_t> count_of(const json& from) {
  return from.is_null() ? std::nullopt : std::optional{from.get<std::uint64_t>()};
}

}  // namespace

std::optional<double> number_of(const json& from) {
  return from.is_null() ? std::nullopt : std::optional{from.get<double>()};
}

json json_of(const compare_figures& figures) {
  const replay_outcome& outcome = figures.outcome;
  return {{"ops", outcome.ops},
          {"peak_live_bytes", outcome.peak_live_bytes},
          {"internal_fragmentation", outcome.at_peak.internal},
          {"oom", outcome.oom},
          {"peak_reserved_bytes", figures.peak_reserved_bytes},
          {"hazards", or_null(figures.hazards)},
          {"in_device_calls_ns", or_null(figures.in_device_calls_ns)},
          {"calls", or_null(figures.calls)}};
}

compare_figures compare_figures_of(const json& from) {
  compare_figures out{};
  out.outcome.ops = from.at("ops").get<std::uint64_t>();
  out.outcome.peak_live_bytes = from.at("peak_live_bytes").get<std::uint64_t>();
  out.outcome.at_peak.internal = from.at("internal_fragmentation").get<double>();
  out.outcome.oom = from.at("oom").get<bool>();
  if (out.outcome.oom) out.outcome.cause = oom_cause::device_full;
  out.peak_reserved_bytes = from.at("peak_reserved_bytes").get<std::uint64_t>();
  out.hazards = count_of(from.at("hazards"));
  out.in_device_calls_ns = count_of(from.at("in_device_calls_ns"));
  if (!from.at("calls").is_null()) out.calls = from.at("calls").get<call_counts>();
  return out;
}

json json_of(const fit_figures& figures) {
  json failures = json::array();
  for (const first_failure& each : figures.failures) {
    failures.push_back({each.percent_of_peak, each.capacity_bytes, or_null(each.at_op)});
  }
  return {{"peak_live_bytes", figures.peak_live_bytes},
          {"min_capacity_bytes", or_null(figures.min_capacity_bytes)},
          {"failures", std::move(failures)}};
}

fit_figures fit_figures_of(const json& from) {
  fit_figures out{.peak_live_bytes = from.at("peak_live_bytes").get<std::uint64_t>(),
                  .min_capacity_bytes = count_of(from.at("min_capacity_bytes")),
                  .failures = {}};
  for (const json& each : from.at("failures")) {
    out.failures.push_back({.percent_of_peak = each.at(0).get<unsigned>(),
                            .capacity_bytes = each.at(1).get<std::uint64_t>(),
                            .at_op = count_of(each.at(2))});
  }
  return out;
}

}  // namespace gpumem::bench::peers
