// Finds leases in the kernel's list of abstract sockets of this network namespace, and their holders through the
// descriptors of the processes that this user may inspect.
#include "leases.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <csignal>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <optional>
#include <sstream>
#include <tuple>

#include "device_figures.hpp"
#include "gpumem/gpu_usage.hpp"
#include "print_error.hpp"
#include "room_claims.hpp"
#include "text.hpp"

namespace gpumem::cli {
namespace {

using nlohmann::json;
namespace fs = std::filesystem;

constexpr std::string_view beginning = "@gpumem-lease/";

struct lease {
  std::string uuid;
  std::optional<unsigned> place;            ///< none for a claim on a named card, which has no lease
  std::optional<std::uint64_t> room_bytes;  ///< the promised room, if known
  std::vector<int> holders;
};

/// The holders of a socket, by its inode.
std::map<std::uint64_t, lease> sockets() {
  std::map<std::uint64_t, lease> out;
  std::ifstream list{"/proc/net/unix"};
  for (std::string line; std::getline(list, line);) {
    const std::size_t at = line.find(beginning);
    if (at == std::string::npos) continue;
    std::istringstream fields{line.substr(0, at)};  // Num RefCount Protocol Flags Type St Inode Path
    std::string skipped;
    std::uint64_t inode = 0;
    for (int i = 0; i < 6; ++i) fields >> skipped;
    fields >> inode;
    const std::string name = line.substr(at + beginning.size());
    const std::size_t slash = name.rfind('/');
    if (!fields || slash == std::string::npos) continue;
    lease& one = out[inode];
    one.uuid = name.substr(0, slash);
    std::from_chars(name.data() + slash + 1, name.data() + name.size(), one.place.emplace());
  }
  return out;
}

void find_holders(std::map<std::uint64_t, lease>& of) {
  std::error_code ignored;
  for (const auto& process : fs::directory_iterator{"/proc", ignored}) {
    const std::string name = process.path().filename().string();
    int pid = 0;
    const auto [end, code] = std::from_chars(name.data(), name.data() + name.size(), pid);
    if (code != std::errc{} || end != name.data() + name.size()) continue;
    std::error_code none;
    for (const auto& fd : fs::directory_iterator{process.path() / "fd", none}) {
      const std::string to = fs::read_symlink(fd.path(), none).string();
      std::uint64_t inode = 0;
      if (!to.starts_with("socket:[") ||
          std::from_chars(to.data() + 8, to.data() + to.size(), inode).ec != std::errc{}) {
        continue;
      }
      const auto at = of.find(inode);
      if (at == of.end()) continue;
      std::vector<int>& holders = at->second.holders;
      if (std::find(holders.begin(), holders.end(), pid) == holders.end()) holders.push_back(pid);
    }
  }
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

/// Joins a claim to its program's lease on the card, or lists it separately if the card was named.
void join_claim(std::map<std::uint64_t, lease>& found, const room_claim& claim) {
  const std::optional<std::uint64_t> bytes = claim.bytes != 0 ? std::optional{claim.bytes} : std::nullopt;
  for (auto& [inode, one] : found) {
    const bool same = one.place && one.uuid == claim.uuid &&
                      std::find(one.holders.begin(), one.holders.end(), claim.pid) != one.holders.end();
    if (!same) continue;
    one.room_bytes = bytes;
    found.erase(claim.inode);
    return;
  }
  found[claim.inode].room_bytes = bytes;
}

int end_holder(int pid) {
  for (const json& each : leases_now()) {
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

json leases_now() {
  std::map<std::uint64_t, lease> found = sockets();
  const std::vector<room_claim> claims = claims_now();
  for (const room_claim& claim : claims) found[claim.inode].uuid = claim.uuid;
  find_holders(found);
  for (const room_claim& claim : claims) join_claim(found, claim);
  std::vector<lease> all;
  for (auto& [inode, one] : found) all.push_back(std::move(one));
  std::sort(all.begin(), all.end(),
            [](const lease& a, const lease& b) { return std::tie(a.uuid, a.place) < std::tie(b.uuid, b.place); });
  json out = json::array();
  for (lease& one : all) {
    std::sort(one.holders.begin(), one.holders.end());
    json holders = json::array();
    for (const int pid : one.holders) {
      const auto number = static_cast<unsigned>(pid);
      holders.push_back({{"pid", pid}, {"user", user_of(number)}, {"command", command_of(number)}});
    }
    out.push_back({{"uuid", one.uuid},
                   {"place", one.place ? json(*one.place) : json()},
                   {"room_bytes", one.room_bytes ? json(*one.room_bytes) : json()},
                   {"holders", std::move(holders)}});
  }
  return out;
}

int show_leases(const lease_options& with) {
  if (with.end != 0) return end_holder(with.end);
  const json all = leases_now();
  if (with.json) {
    const json out{{"schema", 1}, {"leases", all}};
    fmt::print("{}\n", out.dump(2, ' ', true, json::error_handler_t::replace));
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
    const std::string place = each["place"].is_null() ? "-" : each["place"].dump();
    const std::string room = each["room_bytes"].is_null() ? "-" : format_bytes(each["room_bytes"].get<std::uint64_t>());
    if (each["holders"].empty()) rows.push_back({index, name, place, room, "-", "another user's", ""});
    for (const json& holder : each["holders"]) {
      rows.push_back({index, name, place, room, holder["pid"].dump(), holder["user"].get<std::string>(),
                      holder["command"].get<std::string>()});
    }
  }
  fmt::print("{}", table(rows));
  return 0;
}

}  // namespace gpumem::cli
