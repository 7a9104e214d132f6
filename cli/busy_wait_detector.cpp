#include "busy_wait_detector.hpp"

#include <unistd.h>

#include <filesystem>
#include <string>

#include "process_files.hpp"
#include "text.hpp"

namespace gpumem::cli {
namespace {

namespace fs = std::filesystem;

/// Least share of the time on a processor. A process below it is stopped or sleeps; a busy machine can lower a loop's
/// share, so this is far below 1.
constexpr double least_share = 0.1;

std::uint64_t progress_of(const simcuda::process_record& record) {
  std::uint64_t total = record.kernels + record.host_values_read + record.refusals;
  for (const simcuda::card_record& card : record.card) total += card.peak_used_bytes + card.live_bytes;
  return total;
}

}  // namespace

std::optional<host_activity> activity_of(std::uint64_t pid) {
  const fs::path process = "/proc/" + std::to_string(pid);
  const std::vector<std::string> fields = stat_fields(process.string());
  if (fields.size() < 13 || fields[0] == "Z" || fields[0] == "X") return {};
  const auto value = [&](std::size_t field) { return whole_number<std::uint64_t>(fields[field - 3]).value_or(0); };
  host_activity activity;
  activity.page_faults = value(10) + value(12);  // the numbers of proc(5)
  activity.cpu_ticks = value(14) + value(15);
  activity.reads_and_writes = number_after(process / "io", "syscr:") + number_after(process / "io", "syscw:");
  std::error_code error;
  for (const auto& thread : fs::directory_iterator{process / "task", error}) {
    activity.sleeps += number_after(thread.path() / "status", "voluntary_ctxt_switches:");
  }
  return activity;
}

bool busy_wait_detector::only_spun(const seen& before, const seen& after, double seconds) {
  const double ticks = seconds * static_cast<double>(::sysconf(_SC_CLK_TCK));
  return before.record == after.record && before.host.page_faults == after.host.page_faults &&
         before.host.sleeps == after.host.sleeps && before.host.reads_and_writes == after.host.reads_and_writes &&
         static_cast<double>(after.host.cpu_ticks - before.host.cpu_ticks) >= least_share * ticks;
}

double busy_wait_detector::look(const std::vector<simulated_process>& processes, clock::time_point moment) {
  const double time = std::chrono::duration<double>(moment - since_).count();
  std::map<std::uint64_t, seen> found;  // by pid: a process that called exec has several records
  std::uint64_t kernels = 0;
  for (const simulated_process& each : processes) {
    const std::optional<host_activity> host = activity_of(each.record.pid);
    if (!host) continue;
    seen& process = found[each.record.pid];
    process.host = *host;
    process.record += progress_of(each.record);
    kernels += each.record.kernels;
  }
  bool all = kernels != 0 && found.size() == before_.size();
  for (const auto& each : found) {
    const auto known = before_.find(each.first);
    all = all && known != before_.end() && only_spun(known->second, each.second, time);
  }
  if (all) return time;
  before_ = std::move(found);
  since_ = moment;
  return 0;
}

}  // namespace gpumem::cli
