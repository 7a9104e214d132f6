/// The figures of a run as a table, and as JSON and CSV.
///
/// Pure: text from values. README.md of this folder documents the keys, which programs rely on.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "measure.hpp"

namespace gpumem::bench {

struct compare_result {
  const trace* recorded = nullptr;
  const policy_row* row = nullptr;
  compare_figures figures;
  std::optional<fit_figures> fit;    ///< only for rows that take everything
  std::optional<history> over_time;  ///< if requested
  std::string failed{};              ///< why a baseline has no figures; empty: it has figures
};

struct fit_result {
  const trace* recorded = nullptr;
  const policy_row* row = nullptr;
  fit_figures figures;
  std::string failed{};  ///< why a peer has no figures; empty: it has figures
};

/// Tables grouped by trace, with notes below. Requires that rows of a trace are adjacent.
std::string compare_table(const std::vector<compare_result>& results, const replay_setup& setup);
std::string fit_table(const std::vector<fit_result>& results, const replay_setup& setup);

std::string compare_json(const std::vector<compare_result>& results, const replay_setup& setup);
std::string fit_json(const std::vector<fit_result>& results, const replay_setup& setup);

/// The input of the page (page/page.hpp).
std::string compare_page_data(const std::vector<compare_result>& results, const replay_setup& setup,
                              const std::string& note);

std::string compare_csv(const std::vector<compare_result>& results, const replay_setup& setup);
std::string fit_csv(const std::vector<fit_result>& results);

}  // namespace gpumem::bench
