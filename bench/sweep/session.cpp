#include "session.hpp"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <filesystem>
#include <thread>

#include "assign_or_return.hpp"
#include "folder.hpp"
#include "log.hpp"
#include "merge.hpp"
#include "output_file.hpp"
#include "print_error.hpp"
#include "process_files.hpp"
#include "runner.hpp"
#include "sweep_progress.hpp"
#include "text.hpp"
#include "unit.hpp"

namespace gpumem::bench::sweep {
namespace {

constexpr double longest_unit_s = 1e6;
constexpr unsigned most_jobs = 1024;

std::string first_line(std::string_view text) { return std::string{text.substr(0, text.find('\n'))}; }

/// Returns CLI11's help text, or an error of one line.
result<std::optional<std::string>> parse_arguments(CLI::App& app, std::vector<std::string> arguments) {
  std::reverse(arguments.begin(), arguments.end());  // the order that CLI11 expects
  try {
    app.parse(arguments);
  } catch (const CLI::CallForHelp&) {
    return std::optional{app.help()};
  } catch (const CLI::Error& wrong) {
    return status{errc::bad_setting,
                  fmt::format("{} ({} --help lists the options)", first_line(wrong.what()), app.get_name())};
  }
  return std::optional<std::string>{};
}

status read_numbers(sweep_arguments& arguments) {
  if (!arguments.time_limit.empty()) {
    const double seconds = decimal_number(arguments.time_limit).value_or(0);
    if (seconds < 0.001 || seconds > longest_unit_s) {
      return {errc::bad_setting, fmt::format("--unit-time-limit {}: expected seconds from 0.001 to 1000000",
                                             printable(arguments.time_limit))};
    }
    arguments.unit_time_limit = std::chrono::milliseconds{static_cast<std::int64_t>(seconds * 1000)};
  }
  if (!arguments.jobs.empty()) {
    arguments.job_count = whole_number<unsigned>(arguments.jobs).value_or(0);
    if (arguments.job_count == 0 || arguments.job_count > most_jobs) {
      return {errc::bad_setting,
              fmt::format("--jobs {}: expected a whole number from 1 to {}", printable(arguments.jobs), most_jobs)};
    }
  }
  return {};
}

/// The units of one process, in their order, and the count of completed ones.
class local_source final : public unit_source {
 public:
  local_source(std::vector<std::uint32_t> units, sweep_progress& progress)
      : units_{std::move(units)}, progress_{progress} {}

  std::optional<std::uint32_t> next() override {
    const std::size_t i = next_.fetch_add(1);
    return i < units_.size() ? std::optional{units_[i]} : std::nullopt;
  }
  void done(bool failed) override {
    if (failed) ++failed_;
    progress_.show(++done_, failed_);
  }

 private:
  const std::vector<std::uint32_t> units_;
  sweep_progress& progress_;
  std::atomic<std::size_t> next_{0};
  std::atomic<std::uint64_t> done_{0};
  std::atomic<std::uint64_t> failed_{0};
};

result<shard> shard_of(const sweep_arguments& arguments) {
  if (!arguments.shard.empty()) return parse_shard(arguments.shard);
  ASSIGN_OR_RETURN(const auto array, shard_of_array([](const char* name) -> const char* { return std::getenv(name); }));
  return array.value_or(shard{});
}

/// The part of the remaining units that belongs to the shard.
result<std::vector<std::uint32_t>> share_left(const sweep_arguments& arguments, const sweep_plan& plan,
                                              const shard& share) {
  auto left = units_left(arguments.folder, plan, arguments.again);
  if (!left || share.count == 1) return left;
  std::vector<bool> own(plan.units.size());
  for (const std::uint32_t i : units_of(share, plan.order)) own[i] = true;
  std::erase_if(*left, [&](std::uint32_t index) { return !own[index]; });
  return left;
}

int run_sweep(const std::vector<std::string>& arguments) {
  sweep_arguments parsed;
  const auto text = parse_sweep_arguments("gpumem_bench sweep", arguments, parsed);
  if (!text) return complain(text.why(), bad_input);
  if (*text) return print_out(**text).ok() ? 0 : bad_input;
  const auto share = shard_of(parsed);
  if (!share) return complain(share.why(), bad_input);
  const auto plan = plan_sweep(parsed, unit_program());
  if (!plan) return complain(plan.why(), bad_input);
  if (status ready = prepare_folder(parsed.folder, *plan); !ready) return complain(ready, bad_input);
  const auto left = share_left(parsed, *plan, *share);
  if (!left) return complain(left.why(), bad_input);
  const std::size_t all = share->count == 1 ? plan->units.size() : units_of(*share, plan->order).size();
  const unsigned cores = std::max(1U, std::thread::hardware_concurrency());
  run_options run{unit_program(), parsed.folder, share->label(), parsed.job_count == 0 ? cores : parsed.job_count,
                  parsed.unit_time_limit};
  result<run_outcome> ran{run_outcome{}};
  {
    sweep_progress progress{all - left->size(), all, parsed.quiet, parsed.lines, false};
    local_source source{*left, progress};
    ran = run_units(*plan, run, source);
  }
  if (!ran) return complain(ran.why(), bad_input);
  if (status said = print_out(fmt::format("{} units, {} of them had results, {} failed: {}\n", all, all - left->size(),
                                          ran->failed, parsed.folder));
      !said) {
    return complain(said, bad_input);
  }
  return ran->failed == 0 ? 0 : units_failed;
}

}  // namespace

void add_merge_options(CLI::App& app, merge_options& options) {
  app.footer("Example: gpumem_bench merge results -o results.json");
  app.add_option("folder", options.folder, "output of gpumem_bench sweep")->type_name("FOLDER")->required();
  app.add_option("-o,--output", options.output, "ends in .json, .html or .parquet (needs python3 with pyarrow)")
      ->type_name("FILE")
      ->required();
  app.add_flag("--partial", options.partial, "allow units without a result");
}

namespace {

int run_merge(const std::vector<std::string>& arguments) {
  merge_options options;
  CLI::App app{"Merges a sweep's folder into one file, with the same bytes however its units were run.",
               "gpumem_bench merge"};
  add_merge_options(app, options);
  const auto text = parse_arguments(app, arguments);
  if (!text) return complain(text.why(), bad_input);
  if (*text) return print_out(**text).ok() ? 0 : bad_input;
  const status merged = merge(options);
  return merged.ok() ? 0 : complain(merged, bad_input);
}

}  // namespace

int complain(const status& why, int exit_status) {
  print_error("gpumem_bench: {}\n", printable(why.message(), 8192));
  return exit_status;
}

void add_sweep_options(CLI::App& app, sweep_arguments& arguments) {
  app.footer("Example: gpumem_bench sweep manifest.json -o results --shard 3/8");
  app.add_option("manifest", arguments.manifest, "JSON (docs/sweep.md)")->type_name("MANIFEST")->required();
  app.add_option("-o,--output", arguments.folder, "folder for the results; an existing one is resumed")
      ->type_name("FOLDER")
      ->required();
  app.add_option("--shard", arguments.shard, "a share of the units: 3/8; by default from a Slurm array's task")
      ->type_name("i/n");
  app.add_option("--unit-time-limit", arguments.time_limit, "time after which a unit is killed (600)")
      ->type_name("SECONDS");
  app.add_option("-j,--jobs", arguments.jobs, "units at once (default: number of cores; under MPI 1 a rank)")
      ->type_name("N");
  app.add_flag("--retry-failed", arguments.again, "repeat units that crashed, took too long, or had a bad trace");
  app.add_flag("--quiet", arguments.quiet, "no progress on the terminal");
  app.add_flag("--progress", arguments.lines, "progress as lines on standard error, for logs");
}

result<std::optional<std::string>> parse_sweep_arguments(const std::string& program, std::vector<std::string> arguments,
                                                         sweep_arguments& parsed) {
  CLI::App app{
      "Runs every trace of a manifest under every policy, device, capacity and seed; resumes after an interruption.",
      program};
  add_sweep_options(app, parsed);
  auto text = parse_arguments(app, std::move(arguments));
  if (!text || *text) return text;
  if (status read = read_numbers(parsed); !read) return read;
  return text;
}

result<sweep_plan> plan_sweep(const sweep_arguments& arguments, const std::string& program) {
  for (const auto& [name, value] : process_environment()) {
    if (name != "GPUMEM_VERBOSE" && name != "GPUMEM_STRICT") {
      log_line(fmt::format("{} is not read by a sweep, whose settings are the manifest's", printable(name)));
    }
  }
  ASSIGN_OR_RETURN(auto definition, read_manifest(arguments.manifest));
  ASSIGN_OR_RETURN(auto version, program_version(program));
  auto sources = find_sources(definition, std::max(1U, std::thread::hardware_concurrency()));
  return make_plan(std::move(definition), std::move(version), std::move(sources));
}

std::string unit_program() {
  std::error_code ignored;
  const std::filesystem::path own = own_program();
  const std::filesystem::path bench_program = own.parent_path() / "gpumem_bench";
  return std::filesystem::exists(bench_program, ignored) ? bench_program.string() : own.string();
}

bool is_sweep_command(std::string_view word) noexcept { return word == "sweep" || word == "merge" || word == "unit"; }

int sweep_main(const std::vector<std::string>& arguments) {
  const std::vector<std::string> rest(arguments.begin() + 1, arguments.end());
  if (arguments.front() == "unit") return serve_unit(arguments.size() > 1 ? arguments[1] : "");
  return arguments.front() == "merge" ? run_merge(rest) : run_sweep(rest);
}

}  // namespace gpumem::bench::sweep
