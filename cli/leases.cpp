// Finds leases in the table of claims, and their holders among the processes of this PID namespace.
#include "leases.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <filesystem>
#include <tuple>

#include "card_claims.hpp"
#include "claim_table.hpp"
#include "device_figures.hpp"
#include "gpumem/gpu_usage.hpp"
#include "gpumem/settings.hpp"
#include "print_error.hpp"
#include "process_files.hpp"
#include "text.hpp"

namespace gpumem::cli {
namespace {

using nlohmann::json;
namespace fs = std::filesystem;

/// The processes of the claim's program, without its keeper, which ends with them.
std::vector<int> holders_of(const card_claim& claim, const std::vector<int>& processes) {
  std::vector<int> holders;
  if (claim.pid_space == 0 || claim.pid_space != own_pid_space()) return holders;
  for (const int pid : processes) {
    if (pid != claim.keeper && descends_from(pid, claim.pid)) holders.push_back(pid);
  }
  return holders;
}

/// The pids of all processes, in ascending order.
std::vector<int> all_processes() {
  std::vector<int> processes;
  std::error_code ignored;
  for (const auto& process : fs::directory_iterator{"/proc", ignored}) {
    const std::string name = process.path().filename().string();
    if (const auto pid = whole_number<int>(name)) processes.push_back(*pid);
  }
  std::sort(processes.begin(), processes.end());
  return processes;
}

/// NVML's index of the card; `-` without NVML.
std::string index_of(const std::string& bare_uuid) {
  static const result<std::vector<gpu_usage>> cards = gpu_usage_now();
  if (!cards) return "-";
  for (const gpu_usage& card : *cards) {
    if (card.uuid.ends_with(bare_uuid)) return std::to_string(card.index);
    for (const gpu_instance& part : card.instances) {
      if (part.uuid.ends_with(bare_uuid)) return std::to_string(card.index);
    }
  }
  return "-";
}

int complain(const status& why) {
  print_error("gpumem: {}\n", printable(why.message(), 8192));
  return why.code() == errc::bad_setting ? 2 : 1;
}

int end_holder(int pid) {
  json all;
  if (const status told = leases_now(all); !told) return complain(told);
  for (const json& each : all) {
    for (const json& holder : each["holders"]) {
      if (holder["pid"] != pid) continue;
      if (::kill(pid, SIGTERM) == 0) {
        fmt::print("{} ({}) was asked to end; its lease on {} ends with it\n", pid,
                   holder["command"].get<std::string>(), printable(each["uuid"].get<std::string>()));
        return 0;
      }
      print_error("gpumem: --end {}: cannot be ended: {}\n", pid, std::strerror(errno));
      return 1;
    }
  }
  print_error("gpumem: --end {}: expected a process that holds a lease; `gpumem lease` lists them\n", pid);
  return 2;
}

}  // namespace

status leases_now(json& leases) {
  settings options;
  static_cast<void>(options.apply(process_environment()));
  result<std::vector<card_claim>> claims = claim_table::look(options.shared_folder);
  if (!claims && claims.code() != errc::unsupported) return claims.why();
  std::vector<card_claim> all = claims ? *std::move(claims) : std::vector<card_claim>{};
  std::sort(all.begin(), all.end(), [](const card_claim& left, const card_claim& right) {
    return std::tie(left.uuid, left.waiting, left.place, left.since_ns) <
           std::tie(right.uuid, right.waiting, right.place, right.since_ns);
  });
  const std::vector<int> processes = all.empty() ? std::vector<int>{} : all_processes();
  leases = json::array();
  for (const card_claim& claim : all) {
    json holders = json::array();
    for (const int pid : holders_of(claim, processes)) {
      const auto number = static_cast<unsigned>(pid);
      holders.push_back({{"pid", pid}, {"user", user_of(number)}, {"command", command_of(number)}});
    }
    leases.push_back({{"uuid", claim.uuid},
                      {"place", claim.place ? json(*claim.place) : json()},
                      {"room_bytes", claim.bytes != 0 ? json(claim.bytes) : json()},
                      {"waiting", claim.waiting},
                      {"holders", std::move(holders)}});
  }
  return {};
}

int show_leases(const lease_options& options) {
  if (options.end != 0) return end_holder(options.end);
  json all;
  if (const status told = leases_now(all); !told) return complain(told);
  if (options.json) {
    const json shown{{"schema", 1}, {"leases", all}};
    fmt::print("{}\n", shown.dump(2, ' ', true, json::error_handler_t::replace));
    return 0;
  }
  if (all.empty()) {
    fmt::print("no lease: programs that run with --devices auto hold one\n");
    return 0;
  }
  std::vector<std::vector<std::string>> rows{{"gpu", "<uuid", "place", "room", "pid", "<user", "<command"}};
  for (const json& each : all) {
    const std::string uuid = each["uuid"];
    const std::string index = index_of(uuid);
    const std::string name = printable(uuid.substr(0, 13));
    const std::string place = each["waiting"] ? "waits" : each["place"].is_null() ? "-" : each["place"].dump();
    const std::string room = each["room_bytes"].is_null() ? "-" : format_bytes(each["room_bytes"].get<std::uint64_t>());
    if (each["holders"].empty()) rows.push_back({index, name, place, room, "-", "-", "in another container"});
    for (const json& holder : each["holders"]) {
      rows.push_back({index, name, place, room, holder["pid"].dump(), holder["user"].get<std::string>(),
                      holder["command"].get<std::string>()});
    }
  }
  fmt::print("{}", table(rows));
  return 0;
}

}  // namespace gpumem::cli
