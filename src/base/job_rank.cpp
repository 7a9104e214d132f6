#include "job_rank.hpp"

#include <cstdlib>

#include "text.hpp"

namespace gpumem {
namespace {

struct launcher {
  const char* rank;
  const char* local_rank;
};
// Innermost first, because one launcher may start another.
constexpr launcher launchers[] = {
    {"RANK", "LOCAL_RANK"},                                  // torchrun
    {"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_LOCAL_RANK"},  // OpenMPI
    {"PMI_RANK", "MPI_LOCALRANKID"},                         // MPICH and Intel MPI
    {"PMIX_RANK", "PMIX_LOCAL_RANK"},                        // PMIx
    {"SLURM_PROCID", "SLURM_LOCALID"},                       // Slurm
};

}  // namespace

std::optional<job_rank> find_job_rank(const std::function<const char*(const char*)>& variable) {
  for (const launcher& each : launchers) {
    const char* const texts[] = {variable(each.rank), variable(each.local_rank)};
    if (texts[0] == nullptr || texts[1] == nullptr) continue;
    const auto rank = whole_number<unsigned>(texts[0]);
    const auto local_rank = whole_number<unsigned>(texts[1]);
    if (rank && local_rank) return job_rank{*rank, *local_rank};
  }
  return std::nullopt;
}

// Never destroyed: messages may come while the process exits.
const std::optional<job_rank>& this_rank() {
  static const auto* const found =
      new std::optional<job_rank>{find_job_rank([](const char* name) -> const char* { return std::getenv(name); })};
  return *found;
}

const std::string& rank_prefix() {
  static const auto* const prefix =
      new std::string{this_rank() ? "rank " + std::to_string(this_rank()->rank) + ": " : std::string{}};
  return *prefix;
}

std::string with_rank(std::string_view text) {
  std::string expanded;
  for (std::size_t marker = text.find("%r"); marker != std::string_view::npos; marker = text.find("%r")) {
    expanded.append(text.substr(0, marker)).append(std::to_string(this_rank() ? this_rank()->rank : 0));
    text.remove_prefix(marker + 2);
  }
  return expanded.append(text);
}

}  // namespace gpumem
