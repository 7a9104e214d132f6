// Reports of a run on simulated cards, as JSON and as text.
#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "simulate.hpp"
#include "simulated_run.hpp"
#include "temporary_folder.hpp"
#include "values_text.hpp"

namespace gpumem::cli {

/// Reads `--card`: sets the profile's key, and `bytes` if the option is an amount of memory (otherwise 0).
status choose_card(const std::string& card, std::string& key, std::uint64_t& bytes);

/// The option `--cudnn-workspace` of simulate and predict.
status check_cudnn_workspace(const std::string& how);
void add_cudnn_workspace_option(CLI::App& app, std::string& workspace);

/// The option `--settle` of simulate and predict.
void add_settle_option(CLI::App& app, std::string& settle);
/// The warning for a program that was ended because its figures settled.
std::string settled_warning(const simulated_outcome& outcome, const simulated_setup& setup);

/// The warning for a program that requested memory by functions that are not simulated; empty if it did not.
std::string unsupported_warning(const simulated_outcome& outcome);

/// The table that `--card list` prints.
std::string card_table();

/// The JSON of `--json`; docs/simulate.md has its keys.
nlohmann::ordered_json figures_of(const simulated_outcome& outcome, const simulated_setup& setup);
std::string summary_of(const nlohmann::ordered_json& figures);

/// The trace and page that the user requested: `prepare` before the run, `collect` and `finish` after it.
class recorded_trace {
 public:
  explicit recorded_trace(const simulate_options& options) : options_{options} {}
  recorded_trace& operator=(recorded_trace&&) = delete;
  status prepare(simulated_setup& setup);
  /// Takes the trace of one process after the program has ended. Returns warnings of processes that are not in it.
  std::vector<std::string> collect(simulated_outcome& outcome);
  /// Makes the page. The error says why there is no trace or no page.
  [[nodiscard]] status finish() const;

 private:
  const simulate_options& options_;
  std::string path_;                           ///< the trace's path; empty: no trace was requested
  std::optional<temporary_folder> temporary_;  ///< holds a trace that only the page needs
  status failed_;                              ///< why there is no trace
};

}  // namespace gpumem::cli
