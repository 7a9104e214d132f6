#include "unit.hpp"

#include <fmt/format.h>
#include <signal.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <cstdio>
#include <nlohmann/json.hpp>

#include "json_line.hpp"
#include "log.hpp"
#include "manifest.hpp"
#include "output_file.hpp"
#include "own_plans.hpp"
#include "policy_row.hpp"
#include "print_error.hpp"
#include "report.hpp"
#include "text.hpp"
#include "workload.hpp"

namespace gpumem::bench::sweep {
namespace {

using json = nlohmann::ordered_json;

/// Plans are limited by steps, not by time, so that they are reproducible.
constexpr std::chrono::hours no_time_limit{24 * 365};

/// Replaces the trace's path in a message by its name, so that rows do not depend on where the trace is stored.
std::string without_path(std::string text, const std::string& path, const std::string& name) {
  for (std::size_t position = text.find(path); position != std::string::npos && !path.empty();
       position = text.find(path, position)) {
    text.replace(position, path.size(), name);
    position += name.size();
  }
  return text;
}

/// Removes the keys that a unit's row replaces, and the keys with times.
void leave_out(json& row) {
  for (const char* key : {"trace", "policy", "simulated", "model", "prefix_ops", "host_ns_per_op", "loop_ns_per_op",
                          "version", "fit_utilization"}) {
    row.erase(key);
  }
}

unit_rows rows_of(const std::string& head, const json& figures, const json& times) {
  std::string body = json_line(figures);
  body.front() = ',';
  return {head + body, json_line(times)};
}

result<policy_row> row_for(const json& request, const trace& recorded, own_plan& plan) {
  capacity most{request["capacity"], {}};
  if (most.text.ends_with("%live")) most.share_of_peak_live = std::stod(most.text) / 100;
  const std::string limit = most.limit_for(recorded.peak_live_bytes);
  auto row = parse_policy_row(request["policy"].get<std::string>(), settings{}, limit);
  if (row && request["mode"] == "fit") row = fit_row(*row);
  if (!row || !needs_own_plan(*row)) return row;
  auto made = own_plan::make(recorded, no_time_limit, request["plan_steps"].get<std::uint64_t>(), row->config.reuse);
  if (!made) return made.why();
  plan = *std::move(made);
  return plan.followed_by(*row);
}

unit_rows compare_unit(const std::string& head, const trace& recorded, const policy_row& row,
                       const replay_setup& setup) {
  auto figures = measure_checked(recorded, row, setup);
  if (!figures) return {error_row(head, "defect", figures.why().message()), "{}"};
  const replay_outcome& outcome = figures->outcome;
  const double ns = outcome.ops == 0 ? 0 : static_cast<double>(outcome.elapsed_ns) / static_cast<double>(outcome.ops);
  json result_row = json::parse(compare_json({{&recorded, &row, *figures, {}, {}}}, setup))["results"][0];
  leave_out(result_row);
  result_row["takes_everything"] = row.takes_everything;
  return rows_of(head, result_row, {{"host_ns_per_op", ns}});
}

unit_rows fit_unit(const std::string& head, const trace& recorded, const policy_row& row, const replay_setup& setup) {
  const auto figures = measure_fit(recorded, row, setup);
  if (!figures) return {error_row(head, "defect", figures.why().message()), "{}"};
  json result_row = json::parse(fit_json({{&recorded, &row, *figures}}, setup))["results"][0];
  leave_out(result_row);
  result_row.erase("failed");  // for peers only, which a sweep does not run
  result_row["ops"] = recorded.ops.size();
  return rows_of(head, result_row, json::object());
}

}  // namespace

std::string error_row(std::string_view head, std::string_view kind, std::string_view text) {
  const json error{{"kind", kind}, {"text", printable(text, 1000)}};
  return fmt::format("{},\"error\":{}}}", head, json_line(error));
}

bool is_error_row(std::string_view row) noexcept { return row.find(",\"error\":{\"kind\":") != std::string_view::npos; }

unit_rows run_unit(std::string_view text) {
  const json request = json::parse(text);
  const std::string head = request["head"];
  const std::string path = request["trace"];
  const std::string name = request["name"];
  auto t = request["workload"] ? make_workload(path, request["seed"]) : load_trace(path);
  const auto error = [&](std::string_view kind, const status& why) {
    return unit_rows{error_row(head, kind, without_path(why.message(), path, name)), "{}"};
  };
  if (!t) return error("trace", t.why());
  t->name = name;
  manifest common;
  common.lag_ns = request["lag_ns"];
  common.shared_use = request["shared_use"];
  const auto setup = setup_for(common, request["device"].get<std::string>(), request["seed"]);
  if (!setup) return error("policy", setup.why());
  own_plan plan;
  const auto row = row_for(request, *t, plan);
  if (!row) return error("policy", row.why());
  const bool fit = request["mode"] == "fit";
  const sim_config room =
      fit ? fit_device(*setup, std::max<std::uint64_t>(2 * t->peak_live_bytes, 1U << 30U)) : setup->device;
  if (const auto opened = open_rig(room, row->config); !opened) return error("policy", opened.why());
  return fit ? fit_unit(head, *t, *row, *setup) : compare_unit(head, *t, *row, *setup);
}

int serve_unit(const std::string& parent) {
  (void)::prctl(PR_SET_PDEATHSIG, SIGKILL);                                // ends the unit when the sweep is killed
  if (!parent.empty() && std::to_string(::getppid()) != parent) return 2;  // the parent ended before prctl took effect
  set_log_sink([](std::string_view) {});  // the row records whether a policy got less than it requested
  std::string request;
  for (int c = 0; (c = std::getchar()) != EOF;) request.push_back(static_cast<char>(c));
  try {
    const unit_rows made = run_unit(request);
    return print_out(made.row + "\n" + made.times + "\n").ok() ? 0 : 2;
  } catch (const json::exception& e) {
    print_error("gpumem_bench: unit: expected a request on standard input, as a sweep writes it: {}\n",
                printable(e.what()));
    return 2;
  }
}

}  // namespace gpumem::bench::sweep
