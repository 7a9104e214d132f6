/// gpumem_bench: replays recorded traces under every policy on the simulated device.
///
/// Exit status: 0; 1 for a fault of the allocator (a hazard, a broken invariant); 2 for bad input. Results are printed
/// only when all of them are complete.
#include <fmt/format.h>

#include <algorithm>
#include <csignal>
#include <exception>
#include <string_view>
#include <vector>

#include "assign_or_return.hpp"
#include "claims_report.hpp"
#include "costs.hpp"
#include "generate.hpp"
#include "inputs.hpp"
#include "latency.hpp"
#include "log.hpp"
#include "measure_loop.hpp"
#include "output_file.hpp"
#include "page.hpp"
#include "parallel.hpp"
#include "peer.hpp"
#include "print_error.hpp"
#include "progress.hpp"
#include "report.hpp"
#include "session.hpp"
#include "text.hpp"
#include "whole_file.hpp"

namespace {

using namespace gpumem;
using namespace gpumem::bench;

constexpr int defect = 1;
using sweep::bad_input;
using sweep::complain;

status in_row(const status& why, const trace& recorded, const policy_row& row) {
  return {why.code(), fmt::format("{} under {}: {}", recorded.name, row.text, why.message())};
}

/// All rows of the first trace, then of the next.
template <typename row_result>
std::vector<row_result> empty_results(const inputs& all) {
  std::vector<row_result> results;
  for (std::size_t t = 0; t < all.traces.size(); ++t) {
    for (const policy_row& row : all.rows_of[t]) {
      row_result& each = results.emplace_back();
      each.recorded = &all.traces[t];
      each.row = &row;
    }
  }
  return results;
}

/// If the row takes everything, the row for its `fit` search, without the limit.
std::optional<policy_row> unlimited_fit_row(const policy_row& row) {
  if (!row.takes_everything) return std::nullopt;
  policy_row unlimited = row;
  unlimited.config.limit = {};
  auto fitted = fit_row(unlimited);
  return fitted ? std::optional{*fitted} : std::nullopt;
}

/// A baseline's failure goes into its row; a policy's failure ends the comparison.
template <typename row_result>
bool ok_or_row_error(row_result& target, const status& why) {
  if (why.ok() || target.row->baseline.empty()) return why.ok();
  target.failed = why.message();
  return true;
}

/// With peers among the rows, times each row in the tight loop as well.
status measure_times(compare_result& target, const replay_setup& setup, bool loop) {
  if (!target.row->peer.empty()) {
    ASSIGN_OR_RETURN(const auto times, peers::measure_times(*target.recorded, *target.row, setup));
    target.figures.host_ns_per_op = times.host_ns_per_op;
    target.figures.loop_ns_per_op = times.loop_ns_per_op;
    return {};
  }
  ASSIGN_OR_RETURN(target.figures.host_ns_per_op, measure_time(*target.recorded, *target.row, setup));
  if (!loop) return {};
  ASSIGN_OR_RETURN(target.figures.loop_ns_per_op, measure_loop(*target.recorded, *target.row, setup));
  return {};
}

/// Runs the searches and checked passes in parallel, long searches first; then the timed passes, one at a time.
result<std::vector<compare_result>> compare(const inputs& all, const options& options) {
  auto results = empty_results<compare_result>(all);
  std::vector<std::pair<compare_result*, policy_row>> searches;
  for (compare_result& each : results) {
    if (options.setup.cuda)
      break;  // the search runs on the simulated device, and would look measured next to figures of a GPU
    if (auto row = unlimited_fit_row(*each.row)) searches.emplace_back(&each, *row);
  }
  const bool has_peers =
      std::any_of(all.rows.begin(), all.rows.end(), [](const auto& candidate) { return !candidate.peer.empty(); });
  const bool over_time = options.over_time || !options.html_path.empty();
  const std::size_t histories = over_time ? results.size() : 0;
  progress bar{searches.size() + histories + 2 * results.size(), options.quiet};
  const auto replay = [&](std::size_t index) -> status {
    const bool search = index < searches.size();
    const bool remember = !search && index - searches.size() < histories;
    compare_result& target =
        search ? *searches[index].first : results[index - searches.size() - (remember ? 0 : histories)];
    status why;
    if (remember) {
      auto got = measure_history(*target.recorded, *target.row, options.setup);
      why = got.why();
      if (got) target.over_time = *std::move(got);
    } else if (search) {
      auto found = measure_fit(*target.recorded, searches[index].second, options.setup);
      if (found) target.fit = *found;
      why = found.why();
    } else {
      auto measured = target.row->peer.empty() ? measure_checked(*target.recorded, *target.row, options.setup)
                                               : peers::measure_checked(*target.recorded, *target.row, options.setup);
      if (measured) target.figures = *measured;
      why = measured.why();
    }
    bar.step(target.recorded->name + " " + target.row->text);
    return ok_or_row_error(target, why) ? status{} : in_row(why, *target.recorded, *target.row);
  };
  if (status went = run_parallel(searches.size() + histories + results.size(), options.jobs, replay); !went)
    return went;
  for (compare_result& each : results) {
    if (each.failed.empty()) {
      const status timed = measure_times(each, options.setup, has_peers);
      if (!ok_or_row_error(each, timed)) return in_row(timed, *each.recorded, *each.row);
    }
    bar.step(each.recorded->name + " " + each.row->text);
  }
  return results;
}

result<std::vector<fit_result>> fit(const inputs& all, const options& options) {
  auto results = empty_results<fit_result>(all);
  progress bar{results.size(), options.quiet};
  set_log_sink([](std::string_view) {});  // the search makes policies run short of memory on purpose
  const auto search = [&](std::size_t index) -> status {
    fit_result& target = results[index];
    const auto found = target.row->peer.empty() ? measure_fit(*target.recorded, *target.row, options.setup)
                                                : peers::measure_fit(*target.recorded, *target.row, options.setup);
    if (!ok_or_row_error(target, found.why())) return in_row(found.why(), *target.recorded, *target.row);
    if (found) target.figures = *found;
    bar.step(target.recorded->name + " " + target.row->text);
    return {};
  };
  if (status went = run_parallel(results.size(), options.jobs, search); !went) return went;
  return results;
}

result<std::string> text_of_file(const std::string& path) {
  auto text = read_file(path);
  if (text) return text;
  return status{errc::invalid_argument, fmt::format("--note {}: expected a text file", printable(path, 4096))};
}

struct report {
  std::string table;
  std::string json;
  std::string csv;
  std::string html;
  std::uint64_t hazards = 0;
};

result<report> make_report(const inputs& all, const options& options) {
  if (options.subcommand == command::latency) {
    ASSIGN_OR_RETURN(const auto figures, measure_latency(all.rows, all.traces, options));
    return report{latency_table(figures, options.setup), latency_json(figures, options.setup), "", ""};
  }
  if (options.subcommand == command::costs) {
    ASSIGN_OR_RETURN(const auto figures, measure_costs_of(options.setup));
    return report{costs_table(figures, options.setup), costs_json(figures, options.setup), "", ""};
  }
  if (options.subcommand == command::claims) {
    ASSIGN_OR_RETURN(const auto figures, run_claims(options));
    return report{figures.table, figures.json, "", options.html_path.empty() ? "" : make_page(figures.page_data)};
  }
  if (options.subcommand == command::fit) {
    ASSIGN_OR_RETURN(const auto results, fit(all, options));
    return report{fit_table(results, options.setup), fit_json(results, options.setup), fit_csv(results), ""};
  }
  std::string note;
  if (!options.note_path.empty()) {
    ASSIGN_OR_RETURN(note, text_of_file(options.note_path));
  }
  ASSIGN_OR_RETURN(const auto results, compare(all, options));
  report texts{compare_table(results, options.setup),
               compare_json(results, options.setup),
               compare_csv(results, options.setup),
               {}};
  if (!options.html_path.empty()) texts.html = make_page(compare_page_data(results, options.setup, note));
  for (const compare_result& each : results) texts.hazards += each.figures.hazards.value_or(0);
  return texts;
}

/// The requested output files, checked before anything is measured.
struct outputs {
  explicit outputs(const options& options)
      : json{"--json", options.json_path}, csv{"--csv", options.csv_path}, html{"--html", options.html_path} {}
  output_file json;
  output_file csv;
  output_file html;

  [[nodiscard]] status check() const {
    if (html.wanted()) {
      if (status can = page_available(); !can) return can;
    }
    for (const output_file* each : {&json, &csv, &html}) {
      if (status writable = each->check(); !writable) return writable;
    }
    return {};
  }

  /// Writes files first, so that no table is printed if one of them fails.
  [[nodiscard]] status write(const report& made) const {
    bool table = true;
    const std::pair<const output_file*, const std::string*> texts[]{
        {&json, &made.json}, {&csv, &made.csv}, {&html, &made.html}};
    for (const auto& [file, text] : texts) {
      if (!file->wanted()) continue;
      if (status written = file->write(*text); !written) return written;
      table &= !file->is_standard_output();
    }
    return table ? print_out(made.table) : status{};
  }
};

int run(int argc, const char* const* argv) {
  if (argc > 1 && argv[1] == std::string_view{"peer"}) return peers::peer_main({argv + 2, argv + argc});
  if (argc > 1 && argv[1] == std::string_view{"generate"}) return generate_main({argv + 2, argv + argc});
  if (argc > 1 && sweep::is_sweep_command(argv[1])) return sweep::sweep_main({argv + 1, argv + argc});
  options options;
  const auto text = parse_command_line(argc, argv, options);
  if (!text) return complain(text.why(), bad_input);
  if (*text) {
    const status printed = print_out(**text);
    return printed.ok() ? 0 : complain(printed, bad_input);
  }
  const auto all = gather_inputs(options);
  if (!all) return complain(all.why(), bad_input);
  const outputs files{options};
  if (status writable = files.check(); !writable) return complain(writable, bad_input);
  const auto made = make_report(*all, options);
  if (!made) return complain(made.why(), made.code() == errc::bad_setting ? bad_input : defect);
  if (status written = files.write(*made); !written) return complain(written, bad_input);
  if (made->hazards != 0) {
    return complain({errc::corrupt, fmt::format("{} hazards: blocks were handed out too early", made->hazards)},
                    defect);
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  ::signal(SIGCHLD, SIG_DFL);  // ignored, the kernel would drop the status of this program's children
  try {
    return run(argc, argv);
  } catch (const std::exception& e) {
    return complain({errc::device_error, e.what()}, defect);
  }
}
