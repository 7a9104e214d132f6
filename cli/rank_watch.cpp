#include "rank_watch.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <tuple>

#include "run_processes.hpp"
#include "shared_cards.hpp"

namespace gpumem::cli {

std::vector<failed_rank> failed_ranks(const std::vector<simulated_process>& processes, const std::vector<pid_t>& live) {
  std::map<int, const simcuda::process_record*> latest;
  for (const simulated_process& each : processes) {
    if (each.record.is_joined != 0) latest[each.record.rank] = &each.record;
  }
  if (latest.size() < 2) return {};
  std::vector<const simcuda::process_record*> found;
  for (const auto& [rank, record] : latest) {
    const bool has_ended = record->ended_ns != 0;
    const bool lives = std::find(live.begin(), live.end(), static_cast<pid_t>(record->pid)) != live.end();
    if (has_ended ? record->exit_status != 0 : !lives) found.push_back(record);
  }
  std::stable_sort(found.begin(), found.end(), [](const auto* first, const auto* second) {
    const auto order = [](const simcuda::process_record& each) {
      return std::tuple{each.lost_rank, each.ended_ns == 0 ? 1 : 0, each.ended_ns};
    };
    return order(*first) < order(*second);
  });
  std::vector<failed_rank> failed;
  for (const simcuda::process_record* const each : found) {
    failed.push_back({each->rank, each->ranks, each->pid, each->ended_ns != 0 ? each->exit_status : -1});
  }
  return failed;
}

std::string failed_ranks_warning(const simulated_outcome& ran) {
  std::string text;
  for (const failed_rank& each : ran.failed_ranks) {
    const std::string end = each.exit_status < 0 ? "was killed" : fmt::format("ended with status {}", each.exit_status);
    text += text.empty() ? fmt::format("rank {} of {} (process {}) {}", each.rank, each.ranks, each.pid, end)
                         : fmt::format("; then rank {} (process {}) {}", each.rank, each.pid, end);
  }
  return text;
}

bool rank_watch::look(const std::vector<simulated_process>& processes, clock::time_point time) {
  // The rest reads the maps of every process. Skip it while no rank has ended, which is almost always.
  const bool has_ended = std::any_of(processes.begin(), processes.end(), [](const simulated_process& each) {
    return each.record.is_joined != 0 && (each.record.ended_ns != 0 || simcuda::process_begin(each.record.pid) == 0);
  });
  if (!has_ended) return false;
  const bool had_failed = !failed_.empty();
  // In this order: a process that ends after the first call has its status in the records that the second one reads.
  const std::vector<pid_t> live = live_recorded(records_);
  failed_ = failed_ranks(read_(), live);
  if (failed_.empty()) return false;
  if (!had_failed) since_ = time;
  is_lost_ = time - since_ >= patience;
  return is_lost_;
}

}  // namespace gpumem::cli
