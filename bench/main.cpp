/// gpumem_bench: replays recorded traces under every policy on the simulated device.
///
/// Exit status: 0; 1 for a fault of the allocator (a hazard, a broken invariant); 2 for bad input. Results are printed
/// only when all of them are complete.
#include <fmt/format.h>

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <exception>
#include <fstream>
#include <sstream>
#include <string_view>
#include <vector>

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

namespace {

using namespace gpumem;
using namespace gpumem::bench;

constexpr int defect = 1;
constexpr int bad_input = 2;

int complain(const status& why, int exit_status) {
  print_error("gpumem_bench: {}\n", printable(why.message(), 8192));
  return exit_status;
}

status in_row(const status& why, const trace& of, const policy_row& row) {
  return {why.code(), fmt::format("{} under {}: {}", of.name, row.text, why.message())};
}

/// All rows of the first trace, then of the next.
template <typename row_result>
std::vector<row_result> empty_results(const inputs& all) {
  std::vector<row_result> out;
  for (std::size_t t = 0; t < all.traces.size(); ++t) {
    for (const policy_row& row : all.rows_of[t]) {
      row_result& each = out.emplace_back();
      each.recorded = &all.traces[t];
      each.row = &row;
    }
  }
  return out;
}

/// For a row that takes everything, the row of its `fit` search, without the limit.
std::optional<policy_row> unlimited_fit_row(const policy_row& row) {
  if (!row.takes_everything) return std::nullopt;
  policy_row unlimited = row;
  unlimited.with.limit = {};
  auto out = fit_row(unlimited);
  return out ? std::optional{*out} : std::nullopt;
}

/// A baseline's failure goes into its row; a policy's failure ends the comparison.
template <typename row_result>
bool ok_or_row_error(row_result& of, const status& why) {
  if (why.ok() || of.row->baseline.empty()) return why.ok();
  of.failed = why.message();
  return true;
}

/// With peers among the rows, times each row in the tight loop as well.
status measure_times(compare_result& of, const replay_setup& setup, bool loop) {
  if (!of.row->peer.empty()) {
    const auto times = peers::measure_times(*of.recorded, *of.row, setup);
    if (!times) return times.why();
    of.figures.host_ns_per_op = times->host_ns_per_op;
    of.figures.loop_ns_per_op = times->loop_ns_per_op;
    return {};
  }
  const auto ns = measure_time(*of.recorded, *of.row, setup);
  if (!ns) return ns.why();
  of.figures.host_ns_per_op = *ns;
  if (!loop) return {};
  const auto loop_ns = measure_loop(*of.recorded, *of.row, setup);
  if (!loop_ns) return loop_ns.why();
  of.figures.loop_ns_per_op = *loop_ns;
  return {};
}

/// Runs the searches and checked passes in parallel, long searches first; then the timed passes, one at a time.
result<std::vector<compare_result>> compare(const inputs& all, const options& with) {
  auto results = empty_results<compare_result>(all);
  std::vector<std::pair<compare_result*, policy_row>> searches;
  for (compare_result& each : results) {
    if (with.setup.cuda)
      break;  // the search runs on the simulated device; next to figures of a GPU it would look measured
    if (auto row = unlimited_fit_row(*each.row)) searches.emplace_back(&each, *row);
  }
  const bool has_peers = std::any_of(all.rows.begin(), all.rows.end(), [](const auto& r) { return !r.peer.empty(); });
  const bool over_time = with.over_time || !with.html_path.empty();
  const std::size_t histories = over_time ? results.size() : 0;
  progress bar{searches.size() + histories + 2 * results.size(), with.quiet};
  const auto replay = [&](std::size_t i) -> status {
    const bool search = i < searches.size();
    const bool remember = !search && i - searches.size() < histories;
    compare_result& into = search ? *searches[i].first : results[i - searches.size() - (remember ? 0 : histories)];
    status why;
    if (remember) {
      auto got = measure_history(*into.recorded, *into.row, with.setup);
      why = got.why();
      if (got) into.over_time = *std::move(got);
    } else if (search) {
      auto found = measure_fit(*into.recorded, searches[i].second, with.setup);
      if (found) into.fit = *found;
      why = found.why();
    } else {
      auto measured = into.row->peer.empty() ? measure_checked(*into.recorded, *into.row, with.setup)
                                             : peers::measure_checked(*into.recorded, *into.row, with.setup);
      if (measured) into.figures = *measured;
      why = measured.why();
    }
    bar.step(into.recorded->name + " " + into.row->text);
    return ok_or_row_error(into, why) ? status{} : in_row(why, *into.recorded, *into.row);
  };
  if (status went = run_parallel(searches.size() + histories + results.size(), with.jobs, replay); !went) return went;
  for (compare_result& each : results) {
    if (each.failed.empty()) {
      const status timed = measure_times(each, with.setup, has_peers);
      if (!ok_or_row_error(each, timed)) return in_row(timed, *each.recorded, *each.row);
    }
    bar.step(each.recorded->name + " " + each.row->text);
  }
  return results;
}

result<std::vector<fit_result>> fit(const inputs& all, const options& with) {
  auto results = empty_results<fit_result>(all);
  progress bar{results.size(), with.quiet};
  set_log_sink([](std::string_view) {});  // the search makes policies run short of memory on purpose
  const auto search = [&](std::size_t i) -> status {
    fit_result& into = results[i];
    const auto found = into.row->peer.empty() ? measure_fit(*into.recorded, *into.row, with.setup)
                                              : peers::measure_fit(*into.recorded, *into.row, with.setup);
    if (!ok_or_row_error(into, found.why())) return in_row(found.why(), *into.recorded, *into.row);
    if (found) into.figures = *found;
    bar.step(into.recorded->name + " " + into.row->text);
    return {};
  };
  if (status went = run_parallel(results.size(), with.jobs, search); !went) return went;
  return results;
}

result<std::string> text_of_file(const std::string& path) {
  std::ifstream in{path, std::ios::binary};
  std::ostringstream text;
  text << in.rdbuf();
  if (!in) return status{errc::invalid_argument, fmt::format("--note {}: expected a text file", printable(path, 4096))};
  return std::move(text).str();
}

struct report {
  std::string table;
  std::string json;
  std::string csv;
  std::string html;
  std::uint64_t hazards = 0;
};

result<report> make_report(const inputs& all, const options& with) {
  if (with.what == command::latency) {
    const auto figures = measure_latency(all.rows, all.traces, with);
    if (!figures) return figures.why();
    return report{latency_table(*figures, with.setup), latency_json(*figures, with.setup), "", ""};
  }
  if (with.what == command::costs) {
    const auto figures = measure_costs_of(with.setup);
    if (!figures) return figures.why();
    return report{costs_table(*figures, with.setup), costs_json(*figures, with.setup), "", ""};
  }
  if (with.what == command::claims) {
    const auto figures = run_claims(with);
    if (!figures) return figures.why();
    return report{figures->table, figures->json, "", with.html_path.empty() ? "" : make_page(figures->page_data)};
  }
  if (with.what == command::fit) {
    const auto results = fit(all, with);
    if (!results) return results.why();
    return report{fit_table(*results, with.setup), fit_json(*results, with.setup), fit_csv(*results), ""};
  }
  std::string note;
  if (!with.note_path.empty()) {
    auto read = text_of_file(with.note_path);
    if (!read) return read.why();
    note = *std::move(read);
  }
  const auto results = compare(all, with);
  if (!results) return results.why();
  report out{
      compare_table(*results, with.setup), compare_json(*results, with.setup), compare_csv(*results, with.setup), {}};
  if (!with.html_path.empty()) out.html = make_page(compare_page_data(*results, with.setup, note));
  for (const compare_result& each : *results) out.hazards += each.figures.hazards.value_or(0);
  return out;
}

/// The requested output files, checked before anything is measured.
struct outputs {
  explicit outputs(const options& with) : json{with.json_path}, csv{with.csv_path}, html{with.html_path} {}
  output_file json;
  output_file csv;
  output_file html;

  status try_out() {
    if (html.wanted()) {
      if (status can = page_available(); !can) return can;
    }
    for (output_file* each : {&json, &csv, &html}) {
      if (status writable = each->try_out(); !writable) return writable;
    }
    return {};
  }

  /// Writes files first, so that no table is printed if one of them fails.
  status write(const report& made) {
    bool table = true;
    const std::pair<output_file*, const std::string*> texts[]{
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
  options with;
  const auto text = parse_command_line(argc, argv, with);
  if (!text) return complain(text.why(), bad_input);
  if (*text) {
    const status printed = print_out(**text);
    return printed.ok() ? 0 : complain(printed, bad_input);
  }
  const auto all = gather_inputs(with);
  if (!all) return complain(all.why(), bad_input);
  outputs files{with};
  if (status writable = files.try_out(); !writable) return complain(writable, bad_input);
  const auto made = make_report(*all, with);
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
