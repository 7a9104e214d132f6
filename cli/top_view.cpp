#include "top_view.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <ctime>
#include <tuple>

#include "device_figures.hpp"
#include "gpumem/settings.hpp"
#include "served_figures.hpp"
#include "text.hpp"

namespace gpumem::cli {
namespace {

using nlohmann::json;

constexpr std::size_t bar_columns = 8;
constexpr double middle_from = 0.6;
constexpr double high_from = 0.9;

style style_of(double share) {
  if (share >= high_from) return style::high;
  return share >= middle_from ? style::middle : style::low;
}

span_of_text bar(double share) {
  const double kept = std::clamp(share, 0.0, 1.0);
  const auto full = static_cast<std::size_t>(kept * static_cast<double>(bar_columns) + 0.5);
  return {fmt::format("[{:<{}}]", std::string(full, '|'), bar_columns), style_of(share)};
}

std::string cut(const std::string& text, std::size_t columns) {
  return text.size() <= columns ? text : text.substr(0, columns - 1) + "~";
}

/// Formats bytes briefly: `1.5G`, `300M`.
std::string short_bytes(std::uint64_t bytes) {
  constexpr double mib = 1024.0 * 1024;
  const double in_mib = static_cast<double>(bytes) / mib;
  return in_mib < 1000 ? fmt::format("{:.0f}M", in_mib) : fmt::format("{:.1f}G", in_mib / 1024);
}

std::string_view name_of(sort_order order) {
  constexpr std::string_view names[] = {"gpu", "memory", "pid", "user", "command"};
  return names[static_cast<std::size_t>(order)];
}

screen_line title(const look& shown, const view_state& state) {
  const std::time_t time = std::time(nullptr);
  std::tm local{};
  ::localtime_r(&time, &local);
  const std::string count = shown.problem.empty() ? fmt::format("{} GPUs", shown.devices.size()) : "no NVML";
  return {{fmt::format("gpumem top {:02}:{:02}:{:02}  {}", local.tm_hour, local.tm_min, local.tm_sec, count),
           style::heading},
          {fmt::format("  q quit  s sort: {}  / filter{}  t trim  d dump", name_of(state.sort),
                       state.filter.empty() ? "" : fmt::format(": {}", cut(printable(state.filter, 40), 16))),
           style::faint}};
}

screen_line card_line(const json& card) {
  const bool known = !card["used_bytes"].is_null();
  const double used = known ? card["used_bytes"].get<double>() : 0;
  const double total = known ? std::max(1.0, card["total_bytes"].get<double>()) : 1;
  screen_line line{{fmt::format("{:>3} {:<16} {:>5} {:>9} ", card["index"].dump(),
                                cut(printable(card["name"].get<std::string>()), 16),
                                with_unit(card["temperature_c"], "C"), power_text(card))}};
  if (card["busy_percent"].is_null()) {
    line.push_back({fmt::format("{:<15} ", "[busy unknown]"), style::faint});
  } else {
    const double busy = card["busy_percent"].get<double>() / 100;
    line.push_back(bar(busy));
    line.push_back({fmt::format(" {:>3.0f}% ", busy * 100), style_of(busy)});
  }
  line.push_back(bar(used / total));
  line.push_back({fmt::format(" {}", memory_text(card["used_bytes"], card["total_bytes"])), style_of(used / total)});
  const std::string source = card.value("memory_source", "nvml");
  if (source != "nvml") line.push_back({fmt::format(" ({})", source), style::faint});
  return line;
}

screen_line process_line(const process_row& process, std::size_t columns, bool selected) {
  constexpr std::size_t before_command = 67;
  const std::string pool =
      process.served
          ? fmt::format("{:<10} {:>7} {:>8} {:>4.0f}%", cut(process.policy, 10), short_bytes(process.live_bytes),
                        short_bytes(process.reserved_bytes), 100 * process.fragmentation)
          : fmt::format("{:<10} {:>7} {:>8} {:>5}", "-", "", "", "");
  const std::string text =
      fmt::format("{:>3} {:>7} {:<9} {:>8} {} ", process.gpu, process.pid,
                  cut(process.user.empty() ? "-" : process.user, 9), short_bytes(process.memory_bytes), pool);
  const std::size_t room = columns > before_command + 4 ? columns - text.size() : 4;
  return {
      {text + cut(process.command.empty() ? "-" : process.command, room), selected ? style::selected : style::plain}};
}

bool passes(const process_row& process, const std::string& filter) {
  const std::string wanted = lowered(filter);
  return wanted.empty() || lowered(process.command).find(wanted) != std::string::npos ||
         lowered(process.user).find(wanted) != std::string::npos ||
         std::to_string(process.pid).find(wanted) != std::string::npos;
}

void put_in_order(std::vector<process_row>& rows, sort_order order) {
  std::stable_sort(rows.begin(), rows.end(), [order](const process_row& lhs, const process_row& rhs) {
    switch (order) {
      case sort_order::memory:
        return lhs.memory_bytes > rhs.memory_bytes;
      case sort_order::pid:
        return lhs.pid < rhs.pid;
      case sort_order::user:
        return lhs.user < rhs.user;
      case sort_order::command:
        return lhs.command < rhs.command;
      case sort_order::gpu:
        break;
    }
    return std::tuple{lhs.gpu.size(), lhs.gpu, lhs.pid} < std::tuple{rhs.gpu.size(), rhs.gpu, rhs.pid};
  });
}

void add_served(const look& shown, std::vector<process_row>& rows) {
  for (const json& p : shown.served) {
    const int pid = p["pid"];
    for (const json& d : p["devices"]) {
      const std::string gpu = gpu_of(d, shown.devices);
      const auto found = std::find_if(rows.begin(), rows.end(), [&](const process_row& candidate) {
        return candidate.pid == pid && candidate.gpu == gpu && !candidate.served;
      });
      process_row& row = found != rows.end() ? *found : rows.emplace_back();
      row.gpu = gpu;
      row.pid = pid;
      row.user = p["user"];
      row.command = printable(p["command"].get<std::string>(), 200);
      row.served = true;
      row.policy = printable(d["policy"].get<std::string>(), 20);
      row.live_bytes = d["live_bytes"];
      row.reserved_bytes = d["reserved_bytes"];
      row.fragmentation = d["external_fragmentation"];
      row.memory_bytes = std::max(row.memory_bytes, row.reserved_bytes);
    }
  }
}

}  // namespace

std::vector<process_row> process_rows(const look& shown, const view_state& state) {
  std::vector<process_row> rows;
  for (const json& d : shown.devices) {
    for (const json& p : d["processes"]) {
      process_row& row = rows.emplace_back();
      row.gpu = d["index"].dump();
      row.pid = p["pid"];
      row.user = p["user"];
      row.command = p["command"];
      if (!p["used_bytes"].is_null()) row.memory_bytes = p["used_bytes"];
    }
  }
  add_served(shown, rows);
  std::erase_if(rows, [&](const process_row& row) { return !passes(row, state.filter); });
  put_in_order(rows, state.sort);
  return rows;
}

std::vector<screen_line> top_lines(const look& shown, const view_state& state, std::size_t columns) {
  std::vector<screen_line> lines{title(shown, state)};
  if (!shown.problem.empty()) lines.push_back({{shown.problem, style::high}});
  lines.push_back({{fmt::format("{:>3} {:<16} {:>5} {:>9} {:<15} {}", "GPU", "NAME", "TEMP", "POWER", "BUSY", "MEMORY"),
                    style::heading}});
  for (const json& d : shown.devices) lines.push_back(card_line(d));
  lines.emplace_back();
  lines.push_back({{fmt::format("{:>3} {:>7} {:<9} {:>8} {:<10} {:>7} {:>8} {:>5} {}", "GPU", "PID", "USER", "MEMORY",
                                "POLICY", "LIVE", "RESERVED", "FRAG", "COMMAND"),
                    style::heading}});
  const std::vector<process_row> rows = process_rows(shown, state);
  for (std::size_t i = 0; i < rows.size(); ++i) lines.push_back(process_line(rows[i], columns, i == state.selected));
  if (rows.empty())
    lines.push_back({{state.filter.empty() ? "no process" : "no process passes the filter", style::faint}});
  if (state.filtering) {
    lines.push_back({{fmt::format("filter: {}_  (enter ends)", printable(state.filter, 60)), style::heading}});
  } else if (!state.message.empty()) {
    lines.push_back({{printable(state.message, 200), style::heading}});
  }
  for (screen_line& line : lines) {
    std::size_t left = columns;
    for (span_of_text& part : line) {
      part.text.resize(std::min(part.text.size(), left));
      left -= part.text.size();
    }
  }
  return lines;
}

key_action press(view_state& state, int key, std::size_t rows, const key_names& names) {
  state.selected = rows == 0 ? 0 : std::min(state.selected, rows - 1);
  if (state.filtering) {
    if (key == '\n' || key == '\r' || key == 27) state.filtering = false;
    if ((key == names.backspace || key == 127 || key == 8) && !state.filter.empty()) state.filter.pop_back();
    if (key >= 0x20 && key < 0x7f) state.filter.push_back(static_cast<char>(key));
    return key_action::none;
  }
  state.message.clear();
  if (key == names.up && state.selected > 0) --state.selected;
  if (key == names.down && state.selected + 1 < rows) ++state.selected;
  if (key == 's') {
    constexpr int orders = 5;
    state.sort = static_cast<sort_order>((static_cast<int>(state.sort) + 1) % orders);
  }
  if (key == '/') {
    state.filter.clear();
    state.filtering = true;
  }
  if (key == 't') return key_action::trim;
  if (key == 'd') return key_action::dump;
  return key == 'q' || key == 'Q' ? key_action::quit : key_action::none;
}

}  // namespace gpumem::cli
