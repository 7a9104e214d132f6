/// What `gpumem_bench sweep` and `gpumem_bench_mpi sweep` have in common: the words, and the way from them to a plan.
#pragma once

#include <chrono>
#include <optional>
#include <string>
#include <vector>

#include "gpumem/status.hpp"
#include "plan.hpp"
#include "shard.hpp"

namespace CLI {
class App;
}

namespace gpumem::bench::sweep {

struct sweep_words {
  std::string manifest;
  std::string folder;
  std::string shard;       ///< `i/n`; empty: the array's task, else all
  std::string time_limit;  ///< of a unit, in seconds
  std::string jobs;
  bool again = false;  ///< units that failed are run again
  bool quiet = false;
  bool lines = false;  ///< progress as lines

  unsigned job_count = 0;  ///< of `jobs`; 0: as many as there are cores
  std::chrono::milliseconds unit_time_limit{600'000};
};

struct merge_options;

/// What `sweep` and `merge` take.
void add_sweep_options(CLI::App& app, sweep_words& into);
void add_merge_options(CLI::App& app, merge_options& into);

/// A text where one was asked for (help) instead of a sweep. `words` begin behind `sweep`.
result<std::optional<std::string>> parse_sweep_words(const std::string& program, std::vector<std::string> words,
                                                     sweep_words& into);

/// Manifest, traces and version, all checked; nothing is written. `program` runs the units.
result<sweep_plan> plan_sweep(const sweep_words& with, const std::string& program);

/// `gpumem_bench` beside this program's file, or this program's file.
std::string unit_program();

/// `sweep`, `merge`, `unit`: runs the command; the exit status.
int sweep_main(const std::vector<std::string>& words);
bool is_sweep_command(std::string_view word) noexcept;

/// Exit status: 0; 1 where units failed; 2 where nothing could be run or written.
inline constexpr int units_failed = 1;
inline constexpr int bad_input = 2;
int complain(const status& why, int exit_status);

}  // namespace gpumem::bench::sweep
