// Prometheus's text format as samples, and figures of a machine that has all of them.
#pragma once

#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string>
#include <vector>

namespace gpumem::cli {

struct metric_sample {
  std::string name;
  std::map<std::string, std::string> labels;
  double value = 0;
};

struct metrics_text {
  std::vector<metric_sample> samples;
  std::map<std::string, std::string> types;  ///< by name
  std::set<std::string> described;           ///< names with a HELP line

  /// The sample with this name and at least these labels; fails the test unless there is exactly one.
  [[nodiscard]] double value_of(const std::string& name, const std::map<std::string, std::string>& labels) const;
  [[nodiscard]] std::size_t count(const std::string& name, const std::map<std::string, std::string>& labels) const;
};

/// Empty, with a failed test, for a text that is not in format 0.0.4 or that has a time stamp.
metrics_text parse_metrics(const std::string& text);

/// A look in which no figure is missing, as `top --json` prints it.
nlohmann::json full_look();

}  // namespace gpumem::cli
