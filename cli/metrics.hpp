// A look at the machine as metrics of Prometheus. docs/operators.md lists the names.
#pragma once

#include <prometheus/metric_family.h>

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace gpumem::cli {

/// The metrics of a look, given as `top --json` prints it; only families that have a sample. Figures that are null have
/// none. Label values are printable ASCII, and no family has two samples with the same labels.
std::vector<prometheus::MetricFamily> metric_families(const nlohmann::json& shown);

/// The single sample of an exporter whose look failed.
std::vector<prometheus::MetricFamily> metrics_of_failed_look();

}  // namespace gpumem::cli
