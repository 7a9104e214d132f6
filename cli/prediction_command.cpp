#include "prediction_command.hpp"

#include <fmt/format.h>

#include <CLI/CLI.hpp>

#include "print_error.hpp"
#include "simulated_text.hpp"
#include "text.hpp"

namespace gpumem::cli {

void add_recorded_run_options(CLI::App& to, recorded_run_options& into) {
  to.add_option("--card", into.card, "the card that the program sees, with ample memory (default h100)")
      ->type_name("NAME");
  to.add_option("--context", into.context, "memory of a context on each card (default 450MiB)")->type_name("SIZE");
  to.add_option("--trace", into.trace, "keep the run's allocations in this file, for plan, advise and gpumem_bench")
      ->type_name("F");
  add_cudnn_workspace_option(to, into.cudnn_workspace);
  add_values_option(to, into.values);
  add_settle_option(to, into.settle);
}

int fail_prediction(int code, std::string_view why) {
  print_error("gpumem: {}\n", printable(std::string{why}, 8192));
  return code;
}

int run_for_prediction(const recorded_run_options& with, std::string_view name, prediction_run& out) {
  if (with.command.empty()) {
    return fail_prediction(bad_input,
                           fmt::format("{0}: no command; expected gpumem {0} [OPTIONS] -- COMMAND...", name));
  }
  const result<std::uint64_t> context_bytes = check_recorded_run(with);
  if (!context_bytes) return fail_prediction(bad_input, context_bytes.why().message());
  out.context_bytes = *context_bytes;
  int exit_status = 0;
  result<recording> ran = record_run(with, *context_bytes, exit_status);
  if (!ran && ran.code() == errc::bad_setting) return fail_prediction(bad_input, ran.why().message());
  if (!ran) {
    return fail_prediction(exit_status != 0 ? exit_status : prediction_failed,
                           fmt::format("{}: {}", name, ran.why().message()));
  }
  out.recorded = *std::move(ran);
  return 0;
}

nlohmann::ordered_json prediction_figures(const prediction_run& of, const recorded_run_options& with) {
  const recording& run = of.recorded;
  return {{"schema", 1},
          {"card", with.card},
          {"simulated", true},
          {"ops", run.trace.ops.size()},
          {"peak_live_bytes", run.trace.peak_live_bytes},
          {"context_bytes", of.context_bytes},
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

void print_prediction(const prediction_run& of, const std::string& text) {
  fmt::print("{}", visible(text));
  for (const std::string& warning : of.recorded.warnings) print_error("gpumem: {}\n", visible(warning));
  if (!of.recorded.untrue_values.empty()) print_error("gpumem: {}\n", visible(of.recorded.untrue_values));
}

}  // namespace gpumem::cli
