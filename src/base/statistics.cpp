/// The out-of-memory report as text. Pure functions.
///
/// The first line is for people: the failure, its cause and a remedy. The other lines are `key: value` for programs,
/// with bytes as plain numbers.
#include "gpumem/statistics.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "gpumem/settings.hpp"
#include "job_rank.hpp"
#include "text.hpp"

namespace gpumem {
namespace {

/// Memory that a request could use: free blocks of any state, except those in threads' caches.
std::uint64_t free_bytes(const statistics& stats) noexcept {
  return stats.cached_bytes + stats.fenced_bytes + stats.idle_bytes;
}

std::string held(const statistics& stats) {
  if (free_bytes(stats) == 0) return fmt::format("{} live and nothing free", format_bytes(stats.live_bytes));
  return fmt::format("{} live and {} free in pieces of at most {}", format_bytes(stats.live_bytes),
                     format_bytes(free_bytes(stats)), format_bytes(stats.largest_free_bytes));
}

/// The driver's message on one line.
std::string driver_said(const oom_report& report) {
  return report.driver_message.empty() ? "no message" : printable(report.driver_message, 400);
}

/// The explanation if neither a free nor the end of another program could help.
std::string more_than_the_device(const oom_report& report) {
  return fmt::format("more than the device's {} in all; ask for less at once", format_bytes(report.device_total_bytes));
}

// The functions below give advice only if the report's figures show that it would have helped.

/// ` or raise GPUMEM_LIMIT`, if the device has the memory.
std::string_view or_raise_the_limit(const oom_report& report) {
  return report.device_free_bytes >= report.rounded_bytes ? " or raise GPUMEM_LIMIT" : "";
}

/// `, or end what else uses the device`, if other programs hold enough of it.
std::string_view or_end_others(const oom_report& report) {
  const std::uint64_t ours = report.pool_statistics.reserved_bytes;
  if (report.device_total_bytes < ours) return "";
  return report.device_total_bytes - ours >= report.rounded_bytes ? ", or end what else uses the device" : "";
}

/// ` and 5.16 GiB outside the pool`, if the pool alone does not have enough.
std::string left_outside(const oom_report& report) {
  if (free_bytes(report.pool_statistics) >= report.rounded_bytes) return "";
  const statistics& s = report.pool_statistics;
  const std::uint64_t left = s.limit_bytes > s.reserved_bytes ? s.limit_bytes - s.reserved_bytes : 0;
  const std::uint64_t outside = std::min(left, report.device_free_bytes);
  return outside == 0 ? "" : fmt::format(" and {} outside the pool", format_bytes(outside));
}

/// `, pid 77 (python) 5.00 GiB`: the holder with the most memory.
std::string largest_holder(const oom_report& report) {
  if (report.holders.empty()) return "";
  const memory_holder& first = report.holders.front();
  const std::string name = first.name.empty() ? "" : fmt::format(" ({})", printable(first.name));
  const std::string more = report.holders.size() == 1 ? "" : fmt::format(" and {} more", report.holders.size() - 1);
  if (first.bytes == 0) return fmt::format(", beside pid {}{}{}", first.pid, name, more);
  return fmt::format(", pid {}{} {}{}", first.pid, name, format_bytes(first.bytes), more);
}

/// Segments never come together, but pages can move. Only a replay of the earlier requests (`gpumem why`) could say
/// whether the request would have been served.
std::string_view or_map_pages(const oom_report& report) {
  const std::string_view name = std::string_view{report.policy}.substr(0, report.policy.find(':'));
  return name == "expandable" ? "" : ", set GPUMEM_POLICY=expandable, which joins free pages";
}

}  // namespace

std::string_view to_string(oom_cause cause) noexcept {
  constexpr std::array<std::string_view, 6> names{"none",          "limit",        "device_full",
                                                  "fragmentation", "pending_work", "driver_error"};
  const auto index = static_cast<std::size_t>(cause);
  return index < names.size() ? names.at(index) : "unknown_cause";
}

/// The cause, and after the semicolon the advice.
std::string oom_report::explanation() const {
  const oom_report& report = *this;
  const statistics& s = report.pool_statistics;
  switch (report.cause) {
    case oom_cause::limit:
      if (!report.group.empty() && report.group_held_bytes + report.rounded_bytes > report.group_limit_bytes) {
        if (report.group_is_job) {
          return fmt::format(
              "all processes of `gpumem run` hold {} of their {}, this pool {}; free memory, end one of them or raise "
              "--limit",
              format_bytes(report.group_held_bytes), format_bytes(report.group_limit_bytes), held(s));
        }
        return fmt::format(
            "group {} holds {} of its {}, this pool {}{}; free memory, end a member or raise "
            "GPUMEM_GROUP_LIMIT",
            printable(report.group), format_bytes(report.group_held_bytes), format_bytes(report.group_limit_bytes),
            held(s), largest_holder(report));
      }
      if (report.device_total_bytes != 0 && report.rounded_bytes > report.device_total_bytes)
        return more_than_the_device(report);
      if (report.rounded_bytes > s.limit_bytes) {
        return fmt::format("more than the limit {} in all; ask for less{}", format_bytes(s.limit_bytes),
                           or_raise_the_limit(report));
      }
      return fmt::format("limit {} reached with {}; free memory{}", format_bytes(s.limit_bytes), held(s),
                         or_raise_the_limit(report));
    case oom_cause::device_full:
      if (report.device_total_bytes != 0 && report.rounded_bytes > report.device_total_bytes)
        return more_than_the_device(report);
      return fmt::format("device has {} left of {}, this pool holds {}{}; free memory{}",
                         format_bytes(report.device_free_bytes), format_bytes(report.device_total_bytes), held(s),
                         largest_holder(report), or_end_others(report));
    case oom_cause::fragmentation:
      return fmt::format(
          "enough is free, but not in one piece: {}{}; free memory{}, or record the program with GPUMEM_TRACE: "
          "`gpumem why` says who held what, and tries every policy on the recording",
          held(s), left_outside(report), or_map_pages(report));
    case oom_cause::pending_work:
      if (!report.pending_on.empty()) {
        return fmt::format("{} of what fits wait for {}; end a stream capture or synchronise, then try again",
                           report.pending_bytes == 0 ? "bytes" : format_bytes(report.pending_bytes),
                           printable(report.pending_on));
      }
      return fmt::format(
          "a block that fits waits for work that cannot be waited for now ({} fenced); end the stream capture or "
          "synchronise, then try again",
          format_bytes(s.fenced_bytes));
    case oom_cause::driver_error:
      return fmt::format("driver failed ({}) with {}; look for an error of earlier work on the device",
                         driver_said(report), held(s));
    case oom_cause::none:
      break;
  }
  return fmt::format("no cause recorded, {}; free memory", held(s));
}

std::string oom_report::headline() const {
  const std::string of_rank = this_rank() ? fmt::format(" of rank {}", this_rank()->rank) : "";
  return fmt::format("out of memory on pool {} ({}){}: {} asked, {}", printable(pool), printable(policy), of_rank,
                     format_bytes(requested_bytes), explanation());
}

std::string oom_report::to_string() const {
  const statistics& s = pool_statistics;
  std::string text = headline();
  const auto line = [&](std::string_view key, const auto& value) { text += fmt::format("\n{}: {}", key, value); };
  line("cause", gpumem::to_string(cause));
  line("requested_bytes", requested_bytes);
  line("rounded_bytes", rounded_bytes);
  line("limit_bytes", s.limit_bytes);
  line("reserved_bytes", s.reserved_bytes);
  line("live_bytes", s.live_bytes);
  line("thread_cached_bytes", s.thread_cached_bytes);
  line("cached_bytes", s.cached_bytes);
  line("fenced_bytes", s.fenced_bytes);
  line("idle_bytes", s.idle_bytes);
  line("leaked_bytes", s.leaked_bytes);
  line("largest_free_bytes", s.largest_free_bytes);
  line("device_free_bytes", device_free_bytes);
  line("device_total_bytes", device_total_bytes);
  if (!group.empty()) {
    line("group", printable(group));
    line("group_limit_bytes", group_limit_bytes);
    line("group_held_bytes", group_held_bytes);
  }
  if (!pending_on.empty()) {
    line("pending_on", printable(pending_on));
    line("pending_bytes", pending_bytes);
  }
  constexpr std::size_t most_holders = 5;  // the report stays on one screen
  for (std::size_t i = 0; i < std::min(holders.size(), most_holders); ++i) {
    line("holder", fmt::format("pid {} {} {}", holders[i].pid, holders[i].bytes, printable(holders[i].name)));
  }
  if (holders.size() > most_holders) line("more_holders", holders.size() - most_holders);
  if (!driver_message.empty()) line("driver_message", driver_said(*this));
  if (cause != oom_cause::none && cause != oom_cause::driver_error) {
    line("to_do", "gpumem why run.csv, the recording of a run with GPUMEM_TRACE=run.csv");
  }
  constexpr std::size_t most_lines = 29;
  const std::size_t lines = 1 + static_cast<std::size_t>(std::ranges::count(text, '\n'));
  const std::size_t shown = std::min(recent_events.size(), most_lines - std::min(most_lines, lines));
  for (std::size_t i = recent_events.size() - shown; i < recent_events.size(); ++i) {
    line("event", printable(recent_events[i]));
  }
  return text;
}

}  // namespace gpumem
