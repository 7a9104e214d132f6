// What is said of a run on simulated cards: as JSON, and as lines for people.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "simulate.hpp"
#include "simulated_run.hpp"

namespace gpumem::cli {

/// A profile's key, and bytes other than 0 where the memory alone was named.
status choose_card(const std::string& card, std::string& key, std::uint64_t& bytes);

/// What `--card list` prints.
std::string card_table();

/// As the project's contract has it, with more beside.
nlohmann::ordered_json figures_of(const simulated_outcome& of, const simulated_setup& setup);
std::string summary_of(const nlohmann::ordered_json& figures);

/// The trace and the page that were asked for: where they come from, and what is done when the program has ended.
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
  std::string path_;        ///< of the trace; empty: none was asked for
  bool temporary_ = false;  ///< only for the page
};

}  // namespace gpumem::cli
