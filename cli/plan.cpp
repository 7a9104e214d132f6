// Both modes print one line: the problem, the height, the lower bound and the time.
#include "plan.hpp"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "fail.hpp"
#include "gpumem/status.hpp"
#include "own_plans.hpp"
#include "plan_file.hpp"
#include "problem_file.hpp"
#include "progress.hpp"
#include "solve.hpp"
#include "step.hpp"
#include "text.hpp"
#include "trace.hpp"
#include "units.hpp"
#include "validate.hpp"

namespace gpumem::cli {
namespace {

void show(const plan_options& options, const std::string& name, const plan::problem& buffers,
          const plan::solution& found, const plan::step_plan* made) {
  const auto peak = static_cast<double>(found.peak.bytes);
  const double utilization = peak / static_cast<double>(found.height);
  const double at_best = peak / static_cast<double>(found.lower_bound);
  const double seconds = static_cast<double>(found.took.count()) * 1e-6;
  if (options.json) {
    nlohmann::ordered_json figures{{"schema", 1},
                                   {"name", name},
                                   {"buffers", buffers.size()},
                                   {"height_bytes", found.height},
                                   {"lower_bound_bytes", found.lower_bound},
                                   {"peak_live_bytes", found.peak.bytes},
                                   {"utilization", utilization},
                                   {"utilization_bound", at_best},
                                   {"seconds", seconds}};
    if (made != nullptr) figures["repeat_from"] = made->repeat_from;
    fmt::print("{}\n", figures.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace));
    return;
  }
  fmt::print(
      "{}: {} buffers in {} bytes, lower bound {}, peak live {}, utilization {:.4f} (at best {:.4f}), {:.2f} s\n",
      visible(name), buffers.size(), found.height, found.lower_bound, found.peak.bytes, utilization, at_best, seconds);
  if (made != nullptr && made->repeat_from != 0) {
    fmt::print("a step of {} allocations repeats after the first {}\n", buffers.size() - made->repeat_from,
               made->repeat_from);
  }
}

/// Verifies the solver's result independently.
status proven(const plan::problem& buffers, const plan::solution& found, std::uint64_t capacity) {
  if (status ok = plan::validate(buffers, found.offsets, found.height); !ok) return ok;
  if (capacity == 0 || found.height <= capacity) return {};
  if (found.lower_bound > capacity) {
    return {errc::out_of_memory,
            fmt::format("the buffers alive from time {} to before {} need at least {} bytes, however they "
                        "are placed, more than the capacity of {}",
                        found.proof.lower, found.proof.upper, found.lower_bound, capacity)};
  }
  return {errc::out_of_memory, fmt::format("no placement within {} bytes was found in time, the lowest needs {}; the "
                                           "lower bound is {}",
                                           capacity, found.height, found.lower_bound)};
}

status write_offsets(const std::string& path, const plan::problem& buffers, const plan::placement& offsets) {
  std::FILE* const file = std::fopen(path.c_str(), "wb");
  if (file == nullptr) return {errc::invalid_argument, fmt::format("{}: cannot be written", path)};
  fmt::print(file, "id,lower,upper,size,offset\n");
  for (std::size_t i = 0; i < buffers.size(); ++i) {
    fmt::print(file, "{},{},{},{},{}\n", buffers[i].id, buffers[i].lower, buffers[i].upper, buffers[i].size,
               offsets[i]);
  }
  if (std::fclose(file) != 0) return {errc::invalid_argument, fmt::format("{}: cannot be written", path)};
  return {};
}

int plan_static(const plan_options& options, const plan::solve_options& limits) {
  const result<plan::problem> buffers = plan::read_problem(options.static_file);
  if (!buffers) return fail(1, buffers.why().message());
  const result<plan::solution> found = [&] {
    const bench::timed_progress line{"placing " + options.static_file, options.time_limit_s};
    return plan::solve(*buffers, limits);
  }();
  if (!found) return fail(1, fmt::format("{}: {}", options.static_file, found.why().message()));
  show(options, options.static_file, *buffers, *found, nullptr);
  status ok = proven(*buffers, *found, limits.capacity);
  if (ok && !options.output.empty()) ok = write_offsets(options.output, *buffers, found->offsets);
  return ok ? 0 : fail(1, fmt::format("{}: {}", options.static_file, ok.message()));
}

int plan_trace(const plan_options& options, const plan::solve_options& limits) {
  const result<bench::trace> t = bench::load_trace(options.trace);
  if (!t) return fail(1, t.why().message());
  // A plan without the requests that were refused would not place them either.
  const std::vector<plan::recorded_op> ops = bench::recorded_ops(bench::with_refused(*t));
  plan::solution found;
  const result<plan::step_plan> made = [&] {
    const bench::timed_progress line{"planning " + options.trace, options.time_limit_s};
    return plan::make_plan(ops, limits, &found, options.share_streams ? stream_reuse::device : stream_reuse::poll);
  }();
  const result<plan::step> step = plan::step_of(ops);
  if (!made) return fail(1, fmt::format("{}: {}", options.trace, made.why().message()));
  show(options, t->name, step->buffers, found, &*made);
  status ok = proven(step->buffers, found, limits.capacity);
  if (ok) ok = plan::write_plan(options.output, *made);
  return ok ? 0 : fail(1, ok.message());
}

}  // namespace

void add_plan_command(CLI::App& app, plan_options& options) {
  CLI::App* const plan =
      app.add_subcommand("plan", "computes offline placement for the policy planned, or for a static problem");
  plan->add_option("trace", options.trace, "a recording (GPUMEM_TRACE)")->type_name("TRACE");
  plan->add_option("-o,--output", options.output, "the plan; for a static problem, its buffers with their offsets")
      ->type_name("PLAN");
  plan->add_option("--static", options.static_file, "a static problem (id,lower,upper,size) instead of a trace")
      ->type_name("FILE.csv");
  plan->add_option("--capacity", options.capacity,
                   "stop at the first placement within this size [default: search for the lowest]")
      ->type_name("N");
  plan->add_option("--time-limit", options.time_limit_s, "seconds, 0 to 86400")
      ->type_name("S")
      ->capture_default_str()
      ->check(CLI::Range(0.0, 86400.0).description(""));
  plan->add_flag("--share-streams", options.share_streams,
                 "streams may share addresses, for GPUMEM_STREAM_REUSE=device or host");
  plan->add_flag("--json", options.json, "as JSON");
  plan->footer(
      "Exit status: 1 if nothing fits within --capacity.\n"
      "Example: gpumem plan run.csv.gz -o run.plan\n"
      "Example: gpumem plan --static buffers.csv --capacity 1048576 -o placed.csv");
}

int make_plan(const plan_options& options) {
  if (options.trace.empty() == options.static_file.empty()) {
    return fail(2, "plan: expected a TRACE with -o PLAN, or --static FILE.csv with --capacity N");
  }
  if (!options.trace.empty() && options.output.empty())
    return fail(2, "plan: no -o; expected the name of the plan to write");
  plan::solve_options limits;
  limits.time_limit = std::chrono::milliseconds{static_cast<std::int64_t>(options.time_limit_s * 1000)};
  if (!options.capacity.empty()) {
    const result<std::uint64_t> bytes = parse_bytes(options.capacity, "--capacity");
    if (!bytes) return fail(2, bytes.why().message());
    if (*bytes == 0) return fail(2, "--capacity=0: expected at least 1 byte");
    limits.capacity = *bytes;
  }
  return options.trace.empty() ? plan_static(options, limits) : plan_trace(options, limits);
}

}  // namespace gpumem::cli
