/// Summary of a sweep: the distribution of each policy over the traces, where it is best, and where it loses.
///
/// A case is a trace on a device with a capacity and a seed; policies are compared within each case. Utilization is
/// peak live over peak reserved in `compare`, over the smallest capacity in `fit`. In `compare`, a policy that takes
/// all memory at once is not compared, because its peak of reserved is the card's size.
#pragma once

#include <map>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

namespace gpumem::bench::sweep {

/// The figures of one unit that the summary needs.
struct summary_row {
  std::string trace;
  std::string policy;
  std::string rest;  ///< device, capacity and seed
  bool failed = false;
  bool oom = false;
  bool takes_everything = false;
  double utilization = 0;  ///< 0: unknown
  double device_ms = -1;   ///< negative: unknown (`fit`)
  double device_calls = 0;
};

class summary {
 public:
  /// Policies, in the order in which they were first added.
  void add(summary_row row);
  /// `policies`, `kinds` (the part of a trace's name before `-`), `pairs`. Deterministic for the same rows in the same
  /// order.
  [[nodiscard]] nlohmann::ordered_json to_json() const;

 private:
  struct one_case {
    std::string trace;
    std::string rest;
    std::vector<const summary_row*> rows;  ///< by policy; null: no row
  };
  [[nodiscard]] std::vector<one_case> cases() const;
  [[nodiscard]] nlohmann::ordered_json policy_json(std::size_t policy, const std::vector<one_case>& all) const;
  [[nodiscard]] nlohmann::ordered_json kinds_json(const std::vector<one_case>& all) const;
  [[nodiscard]] nlohmann::ordered_json pairs_json(const std::vector<one_case>& all) const;

  std::vector<std::string> policies_;
  std::map<std::string, std::size_t> index_;
  std::vector<summary_row> rows_;
};

}  // namespace gpumem::bench::sweep
