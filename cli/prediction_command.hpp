// Shared by the commands `predict` and `fit`: options, the run, exit statuses, common figures of their JSON.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "cli_app.hpp"
#include "recorded_run.hpp"

namespace gpumem::cli {

inline constexpr int prediction_failed = 1;
inline constexpr int bad_input = 2;
inline constexpr int nothing_fits = 3;

struct prediction_run {
  std::uint64_t context_bytes = 0;
  recording recorded;
};

void add_recorded_run_options(CLI::App& app, recorded_run_options& options);

/// Checks the options and runs the program. Returns 0; otherwise prints the error and returns the exit status of the
/// command `name`.
int run_for_prediction(const recorded_run_options& options, std::string_view name, prediction_run& prediction);

/// The JSON keys common to both commands.
nlohmann::ordered_json prediction_figures(const prediction_run& prediction, const recorded_run_options& options);

/// Prints the result on standard output, and warnings on standard error.
void print_prediction(const prediction_run& prediction, const std::string& text);
std::string as_json_text(const nlohmann::ordered_json& all);

}  // namespace gpumem::cli
