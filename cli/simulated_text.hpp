// Reports of a run on simulated cards, as JSON and as text.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "simulate.hpp"
#include "simulated_run.hpp"

namespace gpumem::cli {

/// A profile's key, and bytes other than 0 if the option names an amount of memory.
status choose_card(const std::string& card, std::string& key, std::uint64_t& bytes);

/// `--cudnn-workspace` of simulate and predict.
status check_cudnn_workspace(const std::string& how);
void add_cudnn_workspace_option(CLI::App& to, std::string& into);

/// The table that `--card list` prints.
std::string card_table();

/// The JSON of `--json`; docs/simulate.md has its keys.
nlohmann::ordered_json figures_of(const simulated_outcome& of, const simulated_setup& setup);
std::string summary_of(const nlohmann::ordered_json& figures);

/// The requested trace and page: where they are recorded, and how they are finished after the program has ended.
class recorded_trace {
 public:
  explicit recorded_trace(const simulate_options& with) : with_{with} {}
  recorded_trace(const recorded_trace&) = delete;
  recorded_trace& operator=(const recorded_trace&) = delete;
  ~recorded_trace();
  status prepare(simulated_setup& setup);
  status finish(const nlohmann::ordered_json& figures);

 private:
  const simulate_options& with_;
  std::string path_;        ///< of the trace; empty: not requested
  bool temporary_ = false;  ///< needed for the page only, then removed
};

}  // namespace gpumem::cli
