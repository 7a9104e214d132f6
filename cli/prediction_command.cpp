#include "prediction_command.hpp"

#include <fmt/format.h>

#include <CLI/CLI.hpp>

#include "fail.hpp"
#include "print_error.hpp"
#include "simulated_text.hpp"
#include "text.hpp"

namespace gpumem::cli {

void add_recorded_run_options(CLI::App& app, recorded_run_options& options) {
  app.add_option("--card", options.card, "the card that the program sees, with ample memory (default h100)")
      ->type_name("NAME");
  app.add_option("--context", options.context, "memory of a context on each card (default 450MiB)")->type_name("SIZE");
  app.add_option("--trace", options.trace, "keep the run's allocations in this file, for plan, advise and gpumem_bench")
      ->type_name("F");
  add_cudnn_workspace_option(app, options.cudnn_workspace);
  add_values_option(app, options.values);
  add_settle_option(app, options.settle);
}

int run_for_prediction(const recorded_run_options& options, std::string_view name, prediction_run& prediction) {
  if (options.command.empty()) {
    return fail(bad_input, fmt::format("{0}: no command; expected gpumem {0} [OPTIONS] -- COMMAND...", name));
  }
  const result<std::uint64_t> context_bytes = check_recorded_run(options);
  if (!context_bytes) return fail(bad_input, context_bytes.why().message());
  prediction.context_bytes = *context_bytes;
  int exit_status = 0;
  result<recording> ran = record_run(options, *context_bytes, exit_status);
  if (!ran && ran.code() == errc::bad_setting) return fail(bad_input, ran.why().message());
  if (!ran) {
    return fail(exit_status != 0 ? exit_status : prediction_failed, fmt::format("{}: {}", name, ran.why().message()));
  }
  prediction.recorded = *std::move(ran);
  return 0;
}

nlohmann::ordered_json prediction_figures(const prediction_run& prediction, const recorded_run_options& options) {
  const recording& run = prediction.recorded;
  return {{"schema", 1},
          {"card", options.card},
          {"simulated", true},
          {"ops", run.trace.ops.size()},
          {"peak_live_bytes", run.trace.peak_live_bytes},
          {"context_bytes", prediction.context_bytes},
          {"outside_bytes", run.outside_bytes},
          {"host_values_read", run.host_values_read},
          {"untrue_values",
           run.untrue_values.empty() ? nlohmann::ordered_json(nullptr) : nlohmann::ordered_json(run.untrue_values)},
          {"processes", run.processes},
          {"host_bytes", run.host_bytes},
          {"warnings", run.warnings}};
}

std::string as_json_text(const nlohmann::ordered_json& all) {
  return all.dump(2, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
}

void print_prediction(const prediction_run& prediction, const std::string& text) {
  fmt::print("{}", visible(text));
  for (const std::string& warning : prediction.recorded.warnings) print_error("gpumem: {}\n", visible(warning));
  if (!prediction.recorded.untrue_values.empty())
    print_error("gpumem: {}\n", visible(prediction.recorded.untrue_values));
}

}  // namespace gpumem::cli
