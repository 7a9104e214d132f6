/// Shared by `gpumem_bench sweep` and `gpumem_bench_mpi sweep`: the arguments, and the steps from them to a plan.
#pragma once

#include <chrono>
#include <optional>
#include <string>
#include <vector>

#include "cli_app.hpp"
#include "gpumem/status.hpp"
#include "plan.hpp"
#include "shard.hpp"

namespace gpumem::bench::sweep {

struct sweep_arguments {
  std::string manifest;
  std::string folder;
  std::string shard;       ///< `i/n`; empty: the array's task, else all
  std::string time_limit;  ///< seconds for one unit
  std::string jobs;
  bool again = false;  ///< runs failed units again
  bool quiet = false;
  bool lines = false;  ///< shows progress as lines

  unsigned job_count = 0;  ///< parsed `jobs`; 0: number of cores
  std::chrono::milliseconds unit_time_limit{600'000};
};

struct merge_options;

/// Declares the options of `sweep` and `merge`.
void add_sweep_options(CLI::App& app, sweep_arguments& arguments);
void add_merge_options(CLI::App& app, merge_options& options);

/// Returns a text to print (help), or nothing. `arguments` are those after `sweep`.
result<std::optional<std::string>> parse_sweep_arguments(const std::string& program, std::vector<std::string> arguments,
                                                         sweep_arguments& parsed);

/// Reads and checks the manifest, the traces and the version; writes nothing. `program` runs the units.
result<sweep_plan> plan_sweep(const sweep_arguments& arguments, const std::string& program);

/// The path of `gpumem_bench` in the folder of this program; if it is missing there, of this program.
std::string unit_program();

/// Runs `sweep`, `merge` or `unit`; returns the exit status.
int sweep_main(const std::vector<std::string>& arguments);
bool is_sweep_command(std::string_view word) noexcept;

/// Exit status: 0; 1 if units failed; 2 if nothing could be run or written.
inline constexpr int units_failed = 1;
inline constexpr int bad_input = 2;
int complain(const status& why, int exit_status);

}  // namespace gpumem::bench::sweep
