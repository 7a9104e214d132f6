// Runs a program on the simulated CUDA libraries: sets its environment, ends it, reads its records.
#pragma once

#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "gpumem/status.hpp"
#include "run_record.hpp"

namespace gpumem::cli {

constexpr double default_settle_s = 600;

struct simulated_setup {
  std::string card;              ///< a profile's key
  std::uint64_t card_bytes = 0;  ///< 0: the memory of the profile
  int cards = 1;
  std::string shared;  ///< name of cards shared by several runs; empty: the value of SIMCUDA_SHARED, or the run's own
  bool one_rank = false;  ///< simulates one rank: NCCL's other ranks send copies of this process's data
  std::uint64_t context_bytes = 0;
  std::uint64_t module_bytes = 0;
  std::uint64_t library_bytes = 0;
  bool strict = false;                           ///< undefined behaviour ends the program; otherwise it is counted
  std::map<std::string, std::string> variables;  ///< more variables for the program: GPUMEM_* of a policy
  std::string preload;                           ///< libgpumem_preload.so if a policy serves the program
  std::string history;            ///< path of PyTorch's records; process N's name ends in .pidN; empty: none
  bool referee = false;           ///< tracks each stream's uses of memory, in Python each operation's
  bool output_to_stderr = false;  ///< sends the program's output to stderr, because stdout is for the result
  bool runs_again = false;        ///< the program has no input and prints nothing: a run before has done that
  /// Ends a program that for so long only reads values and takes no more memory; 0: never. If not the default, also
  /// ends a program that waits in a loop for a kernel's value (busy_wait_detector.hpp).
  double settle_s = default_settle_s;
  std::vector<std::string> command;
};

struct simulated_process {
  simcuda::process_record record;
  nlohmann::json torch;  ///< PyTorch's own figures; null if it has none
  std::string runtime;   ///< file that contains NVIDIA's own CUDA runtime; empty: none does
};

/// A rank of a job whose process ended with a status other than 0, or was killed.
struct failed_rank {
  int rank = 0;
  int ranks = 0;
  std::uint64_t pid = 0;
  int exit_status = 0;  ///< -1: killed, or unknown
};

struct simulated_outcome {
  int exit_status = 0;
  std::vector<failed_rank> failed_ranks{};  ///< in the order of `failed_ranks()` (rank_watch.hpp)
  double seconds = 0;
  std::string runtimes;             ///< CUDA versions whose runtime is simulated here; empty: nothing was started
  std::uint64_t settled_reads = 0;  ///< values read before the run was ended as settled; 0: it was not
  std::uint64_t host_bytes = 0;     ///< the run's peak of host memory; 0: it ended before the first sample
  std::string stopped;              ///< why the run was ended to protect the host's memory; empty: it was not
  std::vector<simulated_process> processes;  ///< processes that tried to initialise the driver, in order of start
};

/// Returns `bad_setting` if the context is larger than the card. `context` is the option's text.
status check_context(const simulated_setup& setup, const std::string& context);

/// Runs the program to its end, and passes on signals that end it.
result<simulated_outcome> run_simulated(const simulated_setup& setup);

}  // namespace gpumem::cli
