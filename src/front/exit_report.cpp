#include "exit_report.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "checked_mutex.hpp"
#include "job_rank.hpp"
#include "log.hpp"
#include "text.hpp"
#include "written_file.hpp"

namespace gpumem {
namespace {

struct exit_list {
  checked_mutex mutex;
  std::vector<std::pair<const void*, std::function<void()>>> reports GPUMEM_GUARDED_BY(mutex);
};

// Never destroyed: threads may still be allocating while static destructors run.
exit_list& at_exit_list() {
  static auto* const list = [] {
    std::atexit([] {
      std::vector<std::pair<const void*, std::function<void()>>> left;
      {
        const mutex_lock lock{at_exit_list().mutex};
        left.swap(at_exit_list().reports);
      }
      for (const auto& [who, report] : left) report();
    });
    return new exit_list;
  }();
  return *list;
}

}  // namespace

// Each figure of a pool appears in the JSON under its member's name.
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(statistics, limit_bytes, reserved_bytes, peak_reserved_bytes, live_bytes,
                                   peak_live_bytes, requested_bytes, thread_cached_bytes, cached_bytes, fenced_bytes,
                                   idle_bytes, leaked_bytes, largest_free_bytes, asked_at_start_bytes,
                                   got_at_start_bytes, metadata_bytes, live_blocks, free_blocks, peak_blocks, segments,
                                   streams, allocations, frees, misuses, out_of_memory, grown_segments,
                                   returned_segments, taken_bytes, mapped_pages, remapped_pages, returned_pages,
                                   plan_placements, plan_departures, fences, host_waits, device_waits)

void remember_at_exit(const void* who, std::function<void()> report) {
  exit_list& list = at_exit_list();
  const mutex_lock lock{list.mutex};
  list.reports.emplace_back(who, std::move(report));
}

void forget_at_exit(const void* owner) {
  exit_list& list = at_exit_list();
  const mutex_lock lock{list.mutex};
  std::erase_if(list.reports, [owner](const auto& entry) { return entry.first == owner; });
}

status write_statistics(const std::string& target, std::span<const logical_device> devices,
                        std::span<const statistics> figures) {
  if (target == "exit") {
    for (std::size_t i = 0; i < devices.size(); ++i) {
      const statistics& s = figures[i];
      log_line(fmt::format(
          "pool {} ({}): {} allocations, {} frees, peak live {}, peak reserved {}, now live {} of {} reserved, "
          "limit {}, {} segments, {} out of memory, {} misuses",
          devices[i].name, devices[i].policy, s.allocations, s.frees, format_bytes(s.peak_live_bytes),
          format_bytes(s.peak_reserved_bytes), format_bytes(s.live_bytes), format_bytes(s.reserved_bytes),
          format_bytes(s.limit_bytes), s.segments, s.out_of_memory, s.misuses));
    }
    return {};
  }
  nlohmann::json all = {{"schema", 1}, {"devices", nlohmann::json::array()}};
  if (const auto& rank = this_rank()) {
    all["rank"] = rank->rank;
    all["local_rank"] = rank->local_rank;
  }
  for (std::size_t i = 0; i < devices.size(); ++i) {
    nlohmann::json pool = figures[i];
    pool["ordinal"] = devices[i].ordinal;
    pool["physical_ordinal"] = devices[i].physical_ordinal;
    pool["name"] = devices[i].name;
    pool["policy"] = devices[i].policy;
    all["devices"].push_back(std::move(pool));
  }
  const auto refused = [&target](std::string_view why) {
    return status{errc::bad_setting,
                  fmt::format("GPUMEM_STATS={}: cannot be written: {}; expected `exit` or the path of a file",
                              printable(target, 4096), why)};
  };
  const result<owned_fd> file = open_written_file(target);
  if (!file) return refused(file.why().message());
  const std::string text = all.dump(2) + '\n';
  for (std::size_t done = 0; done < text.size();) {
    const ssize_t written = ::write(file->get(), text.data() + done, text.size() - done);
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) return refused(std::strerror(errno));
    done += static_cast<std::size_t>(written);
  }
  return {};
}

}  // namespace gpumem
