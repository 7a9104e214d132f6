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

/// A profile's key, and bytes other than 0 if the option names an amount of memory.
status choose_card(const std::string& card, std::string& key, std::uint64_t& bytes);

/// `--cudnn-workspace` of simulate and predict.
status check_cudnn_workspace(const std::string& how);
void add_cudnn_workspace_option(CLI::App& app, std::string& workspace);

/// `--settle` of both.
void add_settle_option(CLI::App& app, std::string& settle);
/// Of a program that was ended because its figures settled.
std::string settled_warning(const simulated_outcome& outcome, const simulated_setup& setup);

/// Of a program that requested memory by functions without a double; empty: it did not.
std::string unsupported_warning(const simulated_outcome& outcome);

/// The table that `--card list` prints.
std::string card_table();

/// The JSON of `--json`; docs/simulate.md has its keys.
nlohmann::ordered_json figures_of(const simulated_outcome& outcome, const simulated_setup& setup);
std::string summary_of(const nlohmann::ordered_json& figures);

/// The requested trace and page: where they are recorded, and how they are finished after the program has ended.
class recorded_trace {
 public:
  explicit recorded_trace(const simulate_options& options) : options_{options} {}
  recorded_trace(const recorded_trace&) = delete;
  recorded_trace& operator=(const recorded_trace&) = delete;
  status prepare(simulated_setup& setup);
  /// Takes the trace of one process, once the program has ended. Returns warnings of what is not in it.
  std::vector<std::string> collect(simulated_outcome& outcome);
  /// Makes the page. The error says why there is no trace or no page.
  [[nodiscard]] status finish() const;

 private:
  const simulate_options& options_;
  std::string path_;                           ///< of the trace; empty: not requested
  std::optional<temporary_folder> temporary_;  ///< of a trace that is needed for the page only
  status failed_;                              ///< why there is no trace
};

}  // namespace gpumem::cli
