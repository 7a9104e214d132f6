/// The rank of this process in a job, as set by its launcher: torchrun, OpenMPI, MPICH, PMIx or Slurm.
///
/// Read from the environment once, at the first call. Any thread.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <string_view>

namespace gpumem {

struct job_rank {
  unsigned rank = 0;        ///< in the job
  unsigned local_rank = 0;  ///< on this machine
  friend bool operator==(const job_rank&, const job_rank&) = default;
};

/// The ranks from the innermost launcher whose variables are both whole numbers.
[[nodiscard]] std::optional<job_rank> find_job_rank(const std::function<const char*(const char*)>& value_of);

/// The rank of this process; empty outside a job.
[[nodiscard]] const std::optional<job_rank>& this_rank();

/// The prefix of messages: `rank 3: `, or empty outside a job.
[[nodiscard]] const std::string& rank_prefix();

/// The text with each `%r` replaced by the rank, 0 outside a job.
[[nodiscard]] std::string with_rank(std::string_view text);

}  // namespace gpumem
