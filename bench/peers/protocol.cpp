#include "protocol.hpp"

namespace gpumem::bench::peers {
namespace {

template <typename value>
json or_null(const std::optional<value>& number) {
  return number ? json(*number) : json(nullptr);
}

std::optional<std::uint64_t> count_of(const json& value) {
  return value.is_null() ? std::nullopt : std::optional{value.get<std::uint64_t>()};
}

}  // namespace

std::optional<double> number_of(const json& value) {
  return value.is_null() ? std::nullopt : std::optional{value.get<double>()};
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

compare_figures compare_figures_of(const json& answer) {
  compare_figures figures{};
  figures.outcome.ops = answer.at("ops").get<std::uint64_t>();
  figures.outcome.peak_live_bytes = answer.at("peak_live_bytes").get<std::uint64_t>();
  figures.outcome.at_peak.internal = answer.at("internal_fragmentation").get<double>();
  figures.outcome.oom = answer.at("oom").get<bool>();
  if (figures.outcome.oom) figures.outcome.cause = oom_cause::device_full;
  figures.peak_reserved_bytes = answer.at("peak_reserved_bytes").get<std::uint64_t>();
  figures.hazards = count_of(answer.at("hazards"));
  figures.in_device_calls_ns = count_of(answer.at("in_device_calls_ns"));
  if (!answer.at("calls").is_null()) figures.calls = answer.at("calls").get<call_counts>();
  return figures;
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

fit_figures fit_figures_of(const json& answer) {
  fit_figures figures{.peak_live_bytes = answer.at("peak_live_bytes").get<std::uint64_t>(),
                      .min_capacity_bytes = count_of(answer.at("min_capacity_bytes")),
                      .failures = {}};
  for (const json& each : answer.at("failures")) {
    figures.failures.push_back({.percent_of_peak = each.at(0).get<unsigned>(),
                                .capacity_bytes = each.at(1).get<std::uint64_t>(),
                                .at_op = count_of(each.at(2))});
  }
  return figures;
}

}  // namespace gpumem::bench::peers
