#include "runner.hpp"

#include <fmt/format.h>
#include <signal.h>
#include <unistd.h>

#include <cstring>
#include <nlohmann/json.hpp>

#include "assign_or_return.hpp"
#include "child.hpp"
#include "log.hpp"
#include "parallel.hpp"
#include "text.hpp"
#include "unit.hpp"

namespace gpumem::bench::sweep {
namespace {

struct unit_outcome {
  std::string row;
  std::string times;
};

/// The row and times that a child printed, or an error row.
unit_outcome outcome_of(const std::string& head, const child_outcome& child, std::chrono::milliseconds limit) {
  if (child.timed_out) {
    const double seconds = static_cast<double>(limit.count()) / 1000;
    return {error_row(head, "timeout", fmt::format("took longer than {:g} s", seconds)), "{}"};
  }
  if (child.signal != 0) {
    return {error_row(head, "crash", fmt::format("ended by signal {} ({})", child.signal, ::strsignal(child.signal))),
            "{}"};
  }
  const std::size_t end = child.output.find('\n');
  const bool whole = end != std::string::npos && child.output.ends_with('\n') &&
                     child.output.find('\n', end + 1) == child.output.size() - 1;
  if (child.exit_status == 0 && whole && child.output.starts_with(head)) {
    return {child.output.substr(0, end), child.output.substr(end + 1, child.output.size() - end - 2)};
  }
  return {error_row(head, "crash",
                    fmt::format("ended with exit status {}{}{}", child.exit_status, child.err.empty() ? "" : ": ",
                                child.err)),
          "{}"};
}

/// Joins the process's times with those that the unit reported (`times`, `{...}`).
std::string times_row(const std::string& key, const unit_outcome& outcome, const child_outcome& child, double wall_s) {
  const std::string_view inner = std::string_view{outcome.times}.substr(1, outcome.times.size() - 2);
  return fmt::format("{{\"key\":\"{}\",\"wall_s\":{:.6f},\"processor_s\":{:.6f},\"peak_resident_bytes\":{}{}{}}}", key,
                     wall_s, child.processor_s, child.peak_resident_bytes, inner.empty() ? "" : ",", inner);
}

/// Runs one unit and appends its result. Returns whether it failed.
result<bool> run_one(const sweep_plan& plan, const run_options& options, const unit& work, result_file& results,
                     result_file& times) {
  const auto began = std::chrono::steady_clock::now();
  const std::string head = row_head(plan, work);
  ASSIGN_OR_RETURN(const auto child, run_child(options.program, {"unit", std::to_string(::getpid())},
                                               request_of(plan, work), options.time_limit));
  const unit_outcome outcome = outcome_of(head, child, options.time_limit);
  const double wall_s = std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count();
  if (status written = times.append(times_row(hex(work.key), outcome, child, wall_s)); !written) return written;
  if (status written = results.append(outcome.row); !written) return written;
  const bool failed = is_error_row(outcome.row);
  if (failed) {
    const auto error = nlohmann::json::parse(outcome.row, nullptr, false);
    const std::string why = error.is_discarded() ? "" : error["error"].value("text", "");
    log_line(
        fmt::format("unit {} ({}): {}", hex(work.key), printable(describe(plan, work), 400), printable(why, 1000)));
  }
  return failed;
}

}  // namespace

result<run_outcome> run_units(const sweep_plan& plan, const run_options& options, unit_source& source) {
  ::signal(SIGPIPE, SIG_IGN);  // a unit may end before it has read its request
  ::signal(SIGXFSZ, SIG_IGN);  // exceeding a file size limit is then an error of `write`
  ASSIGN_OR_RETURN(auto results, result_file::open(options.folder, "results", options.label));
  ASSIGN_OR_RETURN(auto times, result_file::open(options.folder, "times", options.label));
  std::atomic<std::uint64_t> units{0};
  std::atomic<std::uint64_t> failed{0};
  std::atomic<bool> stop{false};
  const status went = run_parallel(options.jobs, options.jobs, [&](std::size_t) -> status {
    while (!stop) {
      const auto next = source.next();
      if (!next) return {};
      const auto unit_failed = run_one(plan, options, plan.units[*next], *results, *times);
      if (!unit_failed) {
        stop = true;
        return unit_failed.why();
      }
      ++units;
      if (*unit_failed) ++failed;
      source.done(*unit_failed);
    }
    return {};
  });
  if (!went) return went;
  return run_outcome{units, failed};
}

}  // namespace gpumem::bench::sweep
