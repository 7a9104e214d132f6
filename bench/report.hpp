/// The figures of a run as a table for people, and as JSON and CSV for programs.
///
/// Pure: text from values. The keys are those of the project's contract with programs that read them (README.md).
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
  std::optional<fit_figures> fit;    ///< of rows that take everything
  std::optional<history> over_time;  ///< where it was asked for
  std::string failed{};              ///< why a baseline has no figures; empty: it has
};

struct fit_result {
  const trace* recorded = nullptr;
  const policy_row* row = nullptr;
  fit_figures figures;
  std::string failed{};  ///< why a peer has no figures; empty: it has
};

/// Grouped by trace, with the lines under it. Rows of one trace stand together.
std::string compare_table(const std::vector<compare_result>& results, const replay_setup& setup);
std::string fit_table(const std::vector<fit_result>& results, const replay_setup& setup);

std::string compare_json(const std::vector<compare_result>& results, const replay_setup& setup);
std::string fit_json(const std::vector<fit_result>& results, const replay_setup& setup);

/// What the page (page/page.hpp) draws.
std::string compare_page_data(const std::vector<compare_result>& results, const replay_setup& setup);

std::string compare_csv(const std::vector<compare_result>& results, const replay_setup& setup);
std::string fit_csv(const std::vector<fit_result>& results);

}  // namespace gpumem::bench
