/// Which rank of a job this process is, as its launcher says: torchrun, OpenMPI, MPICH, PMIx or Slurm.
///
/// Read from the environment once, at the first question. Any thread.
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

/// The innermost launcher that says both; one that gives no whole number says nothing.
[[nodiscard]] std::optional<job_rank> find_job_rank(const std::function<const char*(const char*)>& variable);

/// This process's; nothing where no launcher started it.
[[nodiscard]] const std::optional<job_rank>& this_rank();

/// `rank 3: `, or nothing outside a job: what messages begin with.
[[nodiscard]] const std::string& rank_prefix();

/// The text with each `%r` replaced by the rank, 0 outside a job.
[[nodiscard]] std::string with_rank(std::string_view text);

}  // namespace gpumem
