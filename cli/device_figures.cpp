#include "device_figures.hpp"

#include <fmt/format.h>
#include <sys/stat.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <set>
#include <vector>

#include "gpumem/gpu_usage.hpp"
#include "gpumem/settings.hpp"
#include "text.hpp"

namespace gpumem::cli {
namespace {

using nlohmann::json;

json or_null(const auto& optional) { return optional ? json(*optional) : json(nullptr); }

/// Programs that hold a lease on the card, by the kernel's list of abstract sockets in this network namespace.
std::size_t leases_on(std::string_view uuid) {
  const std::string name = fmt::format("@gpumem-lease/{}/", uuid.substr(std::min<std::size_t>(uuid.size(), 4)));
  std::ifstream sockets{"/proc/net/unix"};
  std::set<std::string> found;
  for (std::string line; std::getline(sockets, line);) {
    const std::size_t at = line.find(name);
    if (at != std::string::npos) found.insert(line.substr(at));
  }
  return found.size();
}

std::string size_or_unknown(const json& bytes) {
  return bytes.is_null() ? "-" : format_bytes(bytes.get<std::uint64_t>());
}

}  // namespace

std::string command_of(unsigned pid) {
  std::ifstream in{fmt::format("/proc/{}/comm", pid)};
  std::string name;
  std::getline(in, name);
  return printable(name, 32);
}

status device_figures(json& into) {
  const result<std::vector<gpu_usage>> usage = gpu_usage_now();
  if (!usage) return usage.why();
  into = json::array();
  for (const gpu_usage& u : *usage) {
    json processes = json::array();
    for (const gpu_process& p : u.processes) {
      processes.push_back({{"pid", p.pid}, {"command", command_of(p.pid)}, {"used_bytes", or_null(p.used_bytes)}});
    }
    json instances = json::array();
    for (const gpu_instance& i : u.instances) {
      instances.push_back({{"uuid", i.uuid},
                           {"total_bytes", i.total_bytes},
                           {"used_bytes", i.used_bytes},
                           {"free_bytes", i.free_bytes}});
    }
    into.push_back({{"index", u.index},
                    {"name", u.name},
                    {"uuid", u.uuid},
                    {"pci_bus_id", u.pci_bus_id},
                    {"total_bytes", u.total_bytes},
                    {"used_bytes", u.used_bytes},
                    {"free_bytes", u.free_bytes},
                    {"busy_percent", or_null(u.busy_percent)},
                    {"mig", u.mig},
                    {"instances", std::move(instances)},
                    {"leases", leases_on(u.uuid)},
                    {"processes", std::move(processes)}});
  }
  return {};
}

json mps_figures() {
  const char* const named = std::getenv("CUDA_MPS_PIPE_DIRECTORY");
  const std::string folder = named != nullptr && *named != '\0' ? named : "/tmp/nvidia-mps";
  struct stat s {};
  const bool there = ::stat((folder + "/control").c_str(), &s) == 0;
  return {{"pipe_directory", folder}, {"control_daemon", there}, {"driver_can_limit", there}};
}

std::string table(const std::vector<std::vector<std::string>>& rows) {
  std::vector<bool> left;
  std::vector<std::size_t> widths;
  for (const std::string& heading : rows.front()) {
    left.push_back(heading.starts_with('<'));
    widths.push_back(heading.size() - (left.back() ? 1 : 0));
  }
  for (std::size_t r = 1; r < rows.size(); ++r) {
    for (std::size_t i = 0; i < rows[r].size(); ++i) widths[i] = std::max(widths[i], rows[r][i].size());
  }
  std::string out;
  for (std::size_t r = 0; r < rows.size(); ++r) {
    std::string line;
    for (std::size_t i = 0; i < rows[r].size(); ++i) {
      const std::string_view cell = std::string_view{rows[r][i]}.substr(r == 0 && left[i] ? 1 : 0);
      line += left[i] ? fmt::format("{:<{}}  ", cell, widths[i]) : fmt::format("{:>{}}  ", cell, widths[i]);
    }
    out += line.substr(0, line.find_last_not_of(' ') + 1) + "\n";
  }
  return out;
}

std::string device_table(const json& devices) {
  if (devices.empty()) return "no GPU\n";
  std::vector<std::vector<std::string>> rows{
      {"gpu", "<name", "<uuid", "total", "used", "free", "busy", "processes", "leases", "<mig"}};
  std::vector<std::vector<std::string>> holders{{"gpu", "pid", "<command", "used"}};
  for (const json& d : devices) {
    const std::string index = d["index"].dump();
    rows.push_back({index, printable(d["name"].get<std::string>()), printable(d["uuid"].get<std::string>()),
                    size_or_unknown(d["total_bytes"]), size_or_unknown(d["used_bytes"]),
                    size_or_unknown(d["free_bytes"]),
                    d["busy_percent"].is_null() ? "-" : d["busy_percent"].dump() + " %",
                    fmt::format("{}", d["processes"].size()), d["leases"].dump(), d["mig"] ? "on" : "off"});
    for (const json& i : d["instances"]) {
      rows.push_back({index, "MIG instance", printable(i["uuid"].get<std::string>()), size_or_unknown(i["total_bytes"]),
                      size_or_unknown(i["used_bytes"]), size_or_unknown(i["free_bytes"]), "-", "", "", ""});
    }
    for (const json& p : d["processes"]) {
      holders.push_back({index, p["pid"].dump(), p["command"].get<std::string>(), size_or_unknown(p["used_bytes"])});
    }
  }
  std::string out = table(rows);
  if (holders.size() > 1) out += "\n" + table(holders);
  return out;
}

}  // namespace gpumem::cli
