/// Traces and rows keep the order in which they were named.
#include "inputs.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <system_error>
#include <utility>

#include "assign_or_return.hpp"
#include "bits.hpp"
#include "log.hpp"
#include "measure.hpp"
#include "parallel.hpp"
#include "peer.hpp"
#include "plan_file.hpp"
#include "process_files.hpp"
#include "progress.hpp"
#include "workload.hpp"

namespace gpumem::bench {
namespace {

status load_traces(const options& options, std::vector<trace>& traces) {
  std::vector<std::string> paths;
  const bool bundled = options.traces.empty() && options.workloads.empty();
  for (const std::string& each : bundled ? std::vector{bundled_traces_folder()} : options.traces) {
    std::error_code why;
    if (!std::filesystem::is_directory(each, why)) {
      paths.push_back(each);
      continue;
    }
    ASSIGN_OR_RETURN(auto found, traces_in(each));
    paths.insert(paths.end(), found.begin(), found.end());
  }
  traces.resize(paths.size() + options.workloads.size());
  status loaded = run_parallel(traces.size(), options.jobs, [&](std::size_t index) -> status {
    ASSIGN_OR_RETURN(traces[index], index < paths.size()
                                        ? load_trace(paths[index])
                                        : make_workload(options.workloads[index - paths.size()], options.setup.seed));
    return {};
  });
  if (!loaded) return loaded;
  std::vector<std::string> names;
  names.reserve(traces.size());
  for (const trace& each : traces) names.push_back(each.name);
  for (trace& each : traces) {
    if (std::count(names.begin(), names.end(), each.name) > 1) each.name = each.path;
  }
  return {};
}

/// CUB has two rows: configured to cache every size, and with its defaults.
void add_baseline(const std::string& name, std::vector<policy_row>& rows) {
  for (const std::string& kind : name == "cub" ? std::vector<std::string>{"cub", "cub_default"} : std::vector{name}) {
    policy_row& row = rows.emplace_back();
    row.text = kind;
    row.baseline = kind;
  }
}

/// Adds the requested baselines. If none is requested, `latency` uses CUB, to which its bounds refer. It does not where
/// driver calls take real or modelled time (on a GPU, or on the simulated driver as a GPU), because CUB then takes
/// minutes. The other baselines call the driver in each operation, so they take minutes anywhere.
void add_baselines(const options& options, std::vector<policy_row>& rows) {
  for (const std::string& each : options.baselines) {
    if (peers::is_peer(options.peers, each)) {
      rows.push_back(peers::row_of(options.peers, each));
    } else {
      add_baseline(each, rows);
    }
  }
  if (options.subcommand != command::latency || options.setup.cuda || !options.policies.empty() ||
      !options.baselines.empty())
    return;
  std::vector<policy_row> unasked;
  add_baseline("cub", unasked);
  if (const status opened = try_on_cuda(unasked.front(), options.setup); !opened) {
    log_line("cub is left out: " + opened.message());
    return;
  }
  rows.insert(rows.end(), unasked.begin(), unasked.end());
}

/// Opens the row as a check. `compare` opens it on the given device. `fit` opens it with ample memory, because a
/// capacity in which a policy cannot start is a result of `fit`, not an error.
status try_to_open(const trace& recorded, const policy_row& row, const options& options) {
  if (!row.peer.empty()) return {};  // its row reports its errors
  if (options.setup.cuda || !row.baseline.empty()) return try_on_cuda(row, options.setup);
  sim_config config = options.setup.device;
  if (options.subcommand == command::fit) {
    config = fit_device(options.setup, std::max(fit_capacity(peak_live_of(recorded, row.tenants), fit_steps), gib));
  }
  if (auto opened = open_rig(config, row.config); !opened) {
    return {opened.code(), "policy '" + row.text + "': " + opened.why().message()};
  }
  return {};
}

/// Makes a plan for each trace that needs one, and the trace's rows with it.
status make_plans(const options& options, inputs& all) {
  const bool replays = options.subcommand == command::compare || options.subcommand == command::fit;
  all.rows_of.assign(all.traces.size(), all.rows);
  if (!replays || std::none_of(all.rows.begin(), all.rows.end(), needs_own_plan)) return {};
  all.plans.resize(all.traces.size());
  progress bar{all.traces.size(), options.quiet};
  return run_parallel(all.traces.size(), options.jobs, [&](std::size_t index) -> status {
    ASSIGN_OR_RETURN(all.plans[index], own_plan::make(all.traces[index], own_plan_time));
    for (policy_row& row : all.rows_of[index]) {
      if (needs_own_plan(row)) row = all.plans[index].followed_by(row);
    }
    bar.step("plan of " + all.traces[index].name);
    return {};
  });
}

/// Warns of a plan made for other requests; the row still follows it. Opening a row reports an unreadable plan.
void warn_of_foreign_plans(const inputs& all) {
  for (const policy_row& row : all.rows) {
    if (row.config.plan_path.empty() || !only_follows_plan(row.config.policy)) continue;
    const auto named = plan::read_plan(row.config.plan_path);
    if (!named) continue;
    for (const trace& each : all.traces) {
      const status of_it = plan::is_plan_of(*named, recorded_ops(each));
      if (!of_it) log_line(fmt::format("policy '{}' on {}: {}", row.text, each.name, of_it.message()));
    }
  }
}

}  // namespace

std::string bundled_traces_folder() {
  std::error_code why;
  const std::filesystem::path installed = own_program().parent_path().parent_path() / "share/gpumem/traces";
  if (std::filesystem::is_directory(installed, why)) return installed.string();
  return GPUMEM_BENCH_SOURCE_TRACES;
}

result<inputs> gather_inputs(const options& options) {
  inputs all;
  if (options.subcommand == command::costs || options.subcommand == command::claims) return all;  // need no input
  ASSIGN_OR_RETURN(const auto defaults, settings_from(process_environment()));
  // `compare` runs such rows within a share of the device. `fit` searches for the device, so a share would handicap
  // them.
  const std::string_view share = options.subcommand == command::compare ? "50%" : "100%";
  std::vector<std::string> texts = options.policies;
  if (texts.empty()) {
    // The cost of a pair depends on how the end of a stream is detected, and little on the policy.
    texts = options.subcommand == command::latency ? std::vector<std::string>{"growth,stream_ids=notify", "growth"}
                                                   : default_rows(defaults, options.limit, share);
  }
  for (const std::string& text : texts) {
    auto row = parse_policy_row(text, defaults, options.limit);
    if (row && options.subcommand == command::fit) row = fit_row(*row);
    if (!row) return row.why();
    all.rows.push_back(*std::move(row));
  }
  add_baselines(options, all.rows);
  if (status loaded = load_traces(options, all.traces); !loaded) return loaded;
  if (status made = make_plans(options, all); !made) return made;
  warn_of_foreign_plans(all);
  for (std::size_t t = 0; t < all.traces.size(); ++t) {
    for (std::size_t r = 0; r < all.rows.size(); ++r) {
      policy_row& row = all.rows_of[t][r];
      if (t > 0) row.config.verbose = false;  // verbose settings are printed once
      if (t == 0 || options.subcommand == command::fit || row.own_plan) {
        if (status opened = try_to_open(all.traces[t], row, options); !opened) return opened;
      }
      row.config.verbose = false;
    }
  }
  for (policy_row& row : all.rows) row.config.verbose = false;
  return all;
}

}  // namespace gpumem::bench
