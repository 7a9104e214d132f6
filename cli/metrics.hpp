// A look at the machine as metrics of Prometheus. docs/operators.md lists the names.
#pragma once

#include <prometheus/metric_family.h>

#include <nlohmann/json.hpp>
#include <vector>

namespace gpumem::cli {

/// The metrics of a look; `shown` is the JSON of `top --json`. Figures that are null have no sample, and families
/// without a sample are left out. Label values are printable ASCII. Labels are unique within a family.
std::vector<prometheus::MetricFamily> metric_families(const nlohmann::json& shown);

/// The single sample of an exporter whose look failed.
std::vector<prometheus::MetricFamily> metrics_of_failed_look();

}  // namespace gpumem::cli
