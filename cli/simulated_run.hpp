// One run of a program on the doubles of CUDA: its environment, its end, and its records.
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
  bool one_rank = false;  ///< each other rank of NCCL's communicators sends what the one process sends
  std::uint64_t context_bytes = 0;
  std::uint64_t module_bytes = 0;
  std::uint64_t library_bytes = 0;
  bool strict = false;                           ///< else what a card leaves undefined is counted
  std::map<std::string, std::string> variables;  ///< further ones, GPUMEM_* of a policy
  std::string preload;                           ///< libgpumem_preload.so, where a policy serves the program
  std::string history;            ///< PyTorch's record of process N goes to its name with .pidN; empty: none
  bool referee = false;           ///< who uses what is followed, in Python by operations
  bool output_to_stderr = false;  ///< the program's, where standard output is for the result
  /// A program that reads values and takes no more memory for that long is ended; 0: none is. Where it is not the
  /// default, so is one that only waits for a value of a kernel (busy_wait_detector.hpp).
  double settle_s = default_settle_s;
  std::vector<std::string> command;
};

struct simulated_process {
  simcuda::process_record record;
  nlohmann::json torch;  ///< PyTorch's own figures; null if it has none
  std::string runtime;   ///< file of a CUDA runtime of NVIDIA's that is linked into the process; empty: none
};

/// A rank of a job whose process ended with a status other than 0, or was killed.
struct failed_rank {
  int rank = 0;
  int ranks = 0;
  std::uint64_t pid = 0;
  int exit_status = 0;  ///< -1: it was killed, or is unknown
};

struct simulated_outcome {
  int exit_status = 0;
  std::vector<failed_rank> failed_ranks{};  ///< in the order in which they ended, as far as that is known
  double seconds = 0;
  std::string runtimes;             ///< versions of CUDA whose runtimes have a double here; empty: nothing was started
  std::uint64_t settled_reads = 0;  ///< values read meanwhile, where the command was ended because its figures settled
  std::uint64_t host_bytes = 0;     ///< the most of the host's memory that the program took; 0: it ended too soon
  std::string stopped;              ///< why it was ended for the host's sake; empty: it was not
  std::vector<simulated_process> processes;  ///< processes that initialised the driver, or tried to
};

/// The folder with the doubles: in the build tree next to the program, or where it is installed.
result<std::string> find_simulated_driver();

/// The error of a context that is larger than the card.
status check_context(const simulated_setup& setup, const std::string& context);

/// Runs the program to its end, and passes on signals that end it.
result<simulated_outcome> run_simulated(const simulated_setup& setup);

}  // namespace gpumem::cli
