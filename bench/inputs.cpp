/// Traces in the order in which they were named, rows likewise.
#include "inputs.hpp"

#include <algorithm>
#include <filesystem>
#include <system_error>
#include <utility>

#include "bits.hpp"
#include "measure.hpp"
#include "parallel.hpp"
#include "workload.hpp"

#ifndef GPUMEM_BENCH_SOURCE_TRACES
#error "bench/CMakeLists.txt defines GPUMEM_BENCH_SOURCE_TRACES"
#endif

namespace gpumem::bench {
namespace {

status load_traces(const options& from, std::vector<trace>& into) {
  std::vector<std::string> paths;
  const bool bundled = from.traces.empty() && from.workloads.empty();
  for (const std::string& each : bundled ? std::vector{bundled_traces_folder()} : from.traces) {
    std::error_code why;
    if (!std::filesystem::is_directory(each, why)) {
      paths.push_back(each);
      continue;
    }
    auto found = traces_in(each);
    if (!found) return found.why();
    paths.insert(paths.end(), found->begin(), found->end());
  }
  into.resize(paths.size() + from.workloads.size());
  status loaded = run_parallel(into.size(), from.jobs, [&](std::size_t i) -> status {
    auto t = i < paths.size() ? load_trace(paths[i]) : make_workload(from.workloads[i - paths.size()], from.setup.seed);
    if (!t) return t.why();
    into[i] = *std::move(t);
    return {};
  });
  if (!loaded) return loaded;
  std::vector<std::string> names;
  names.reserve(into.size());
  for (const trace& each : into) names.push_back(each.name);
  for (trace& each : into) {
    if (std::count(names.begin(), names.end(), each.name) > 1) each.name = each.path;
  }
  return {};
}

/// CUB has two rows: caching every size, as a program that cares would set it, and with its defaults.
void add_baselines(const options& from, std::vector<policy_row>& rows) {
  for (const std::string& each : from.baselines) {
    for (const std::string& kind : each == "cub" ? std::vector<std::string>{"cub", "cub_default"} : std::vector{each}) {
      policy_row& row = rows.emplace_back();
      row.text = kind;
      row.baseline = kind;
    }
  }
}

/// `compare` opens each row on the one device there is, `fit` with room to spare: there a capacity in which a policy
/// cannot start is an answer, not a mistake.
status try_to_open(const inputs& all, const policy_row& row, const options& from) {
  if (from.setup.cuda || !row.baseline.empty()) return try_on_cuda(row, from.setup);
  std::vector<sim_config> devices;
  if (from.what != command::fit) {
    devices.push_back(from.setup.device);
  } else {
    for (const trace& each : all.traces) {
      const std::uint64_t peak = peak_live_of(each, row.tenants);
      devices.push_back(fit_device(from.setup, std::max(fit_capacity(peak, fit_steps), gib)));
    }
  }
  for (const sim_config& each : devices) {
    if (auto opened = open_rig(each, row.with); !opened) {
      return {opened.code(), "policy '" + row.text + "': " + opened.why().message()};
    }
  }
  return {};
}

}  // namespace

std::string bundled_traces_folder() {
  std::error_code why;
  const std::filesystem::path program = std::filesystem::read_symlink("/proc/self/exe", why);
  const std::filesystem::path installed = program.parent_path().parent_path() / "share/gpumem/traces";
  if (!why && std::filesystem::is_directory(installed, why)) return installed.string();
  return GPUMEM_BENCH_SOURCE_TRACES;
}

result<inputs> gather_inputs(const options& from) {
  inputs all;
  if (from.what == command::costs || from.what == command::claims) return all;  // which need neither
  const auto defaults = settings_from(process_environment());
  if (!defaults) return defaults.why();
  // A share of the device is a limit for compare; for fit, which looks for the device, it would be a handicap.
  const std::string_view share = from.what == command::compare ? "50%" : "100%";
  std::vector<std::string> texts = from.policies;
  if (texts.empty()) {
    // What a pair costs hardly depends on the policy, but on who tells that a stream has ended.
    texts = from.what == command::latency ? std::vector<std::string>{"growth,stream_ids=notify", "growth"}
                                          : default_rows(*defaults, from.limit, share);
  }
  for (const std::string& text : texts) {
    auto row = parse_policy_row(text, *defaults, from.limit);
    if (row && from.what == command::fit) row = fit_row(*row);
    if (!row) return row.why();
    all.rows.push_back(*std::move(row));
  }
  add_baselines(from, all.rows);
  if (status loaded = load_traces(from, all.traces); !loaded) return loaded;
  for (policy_row& row : all.rows) {
    if (status opened = try_to_open(all, row, from); !opened) return opened;
    row.with.verbose = false;  // said once
  }
  return all;
}

}  // namespace gpumem::bench
