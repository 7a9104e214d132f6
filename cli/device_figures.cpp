#include "device_figures.hpp"

#include <fmt/format.h>
#include <pwd.h>
#include <sys/stat.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <optional>
#include <vector>

#include "claim_table.hpp"
#include "gpumem/gpu_usage.hpp"
#include "gpumem/settings.hpp"
#include "log.hpp"
#include "process_files.hpp"
#include "text.hpp"
#include "text_table.hpp"
#include "unmeasured_cards.hpp"

namespace gpumem::cli {
namespace {

using nlohmann::json;

json or_null(const auto& optional) { return optional ? json(*optional) : json(nullptr); }

std::optional<std::uint64_t> if_known(const gpu_usage& card, std::uint64_t bytes) {
  return card.measured_by == memory_source::unknown ? std::nullopt : std::optional{bytes};
}

const char* name_of(memory_source source) {
  constexpr std::array names{"nvml", "host", "probe", "unknown"};
  return names.at(static_cast<std::size_t>(source));
}

/// Names the source of a card's memory figures, if it is not NVML.
std::string source_line(const json& card) {
  const std::string source = card["memory_source"];
  std::string_view text;
  if (source == "host") text = "an integrated GPU; free is what the host has available";
  if (source == "probe") text = "not measured by NVML; free as a context found it within 10 s";
  if (source == "unknown") text = "memory not known: not measured by NVML, and no context can be made";
  return text.empty() ? "" : fmt::format("GPU {}: {}\n", card["index"].dump(), text);
}

/// The number of programs that hold a lease on the card.
std::size_t leases_on(std::string_view uuid, const std::vector<card_claim>& claims) {
  return static_cast<std::size_t>(std::count_if(claims.begin(), claims.end(), [&](const card_claim& each) {
    return each.place && each.uuid == bare_uuid(uuid);
  }));
}

std::string size_or_unknown(const json& bytes) {
  return bytes.is_null() ? "-" : format_bytes(bytes.get<std::uint64_t>());
}

}  // namespace

std::string user_of(unsigned pid) {
  struct stat s {};
  if (::stat(fmt::format("/proc/{}", pid).c_str(), &s) != 0) return "";
  std::array<char, 4096> room{};
  passwd entry{};
  passwd* found = nullptr;
  if (::getpwuid_r(s.st_uid, &entry, room.data(), room.size(), &found) == 0 && found != nullptr) {
    return printable(found->pw_name, 32);
  }
  return std::to_string(s.st_uid);
}

status device_figures(json& figures) {
  result<std::vector<gpu_usage>> usage = gpu_usage_now();
  if (!usage) return usage.why();
  settings options;
  static_cast<void>(options.apply(process_environment()).ok());  // other settings may be bad: they are not used here
  measure_cards(*usage, options.shared_folder);
  const result<std::vector<card_claim>> claims = claim_table::look(options.shared_folder);
  if (!claims) log_line("leases are not known: " + claims.why().message());
  figures = json::array();
  for (const gpu_usage& u : *usage) {
    json processes = json::array();
    for (const gpu_process& p : u.processes) {
      processes.push_back({{"pid", p.pid},
                           {"user", user_of(p.pid)},
                           {"command", command_of(p.pid)},
                           {"used_bytes", or_null(p.used_bytes)}});
    }
    json instances = json::array();
    for (const gpu_instance& i : u.instances) {
      instances.push_back({{"uuid", i.uuid},
                           {"total_bytes", i.total_bytes},
                           {"used_bytes", i.used_bytes},
                           {"free_bytes", i.free_bytes}});
    }
    figures.push_back({{"index", u.index},
                       {"name", u.name},
                       {"uuid", u.uuid},
                       {"pci_bus_id", u.pci_bus_id},
                       {"total_bytes", u.total_bytes == 0 ? json(nullptr) : json(u.total_bytes)},
                       {"used_bytes", or_null(if_known(u, u.used_bytes))},
                       {"free_bytes", or_null(if_known(u, u.free_bytes))},
                       {"memory_source", name_of(u.measured_by)},
                       {"busy_percent", or_null(u.busy_percent)},
                       {"temperature_c", or_null(u.temperature_c)},
                       {"power_mw", or_null(u.power_mw)},
                       {"power_limit_mw", or_null(u.power_limit_mw)},
                       {"mig", u.mig},
                       {"instances", std::move(instances)},
                       {"leases", claims ? json(leases_on(u.uuid, *claims)) : json(nullptr)},
                       {"processes", std::move(processes)}});
  }
  return {};
}

json mps_figures() {
  const char* const named = std::getenv("CUDA_MPS_PIPE_DIRECTORY");
  const std::string folder = named != nullptr && *named != '\0' ? named : "/tmp/nvidia-mps";
  struct stat s {};
  const bool running = ::stat((folder + "/control").c_str(), &s) == 0;
  return {{"pipe_directory", folder}, {"control_daemon", running}, {"driver_can_limit", running}};
}

std::string table(const std::vector<std::vector<std::string>>& rows) {
  std::string text;
  for (const std::string& line : bench::table_lines(rows)) text += line + "\n";
  return text;
}

std::string memory_text(const json& used, const json& total) {
  constexpr double gib = 1024.0 * 1024 * 1024;
  const auto text = [](const json& bytes) {
    return bytes.is_null() ? std::string{"-"} : fmt::format("{:.1f}", bytes.get<double>() / gib);
  };
  return fmt::format("{}/{} GiB", text(used), text(total));
}

std::string power_text(const json& card) {
  const auto watts = [](const json& mw) {
    return mw.is_null() ? std::string{"-"} : std::to_string((mw.get<std::uint64_t>() + 500) / 1000);
  };
  return card["power_mw"].is_null() ? "-"
                                    : fmt::format("{}/{} W", watts(card["power_mw"]), watts(card["power_limit_mw"]));
}

std::string with_unit(const json& number, std::string_view unit) {
  return number.is_null() ? "-" : fmt::format("{} {}", number.dump(), unit);
}

std::string device_table(const json& devices) {
  if (devices.empty()) return "no GPU\n";
  std::vector<std::vector<std::string>> rows{{"gpu", "<name", "temp", "power", "busy", "memory", "procs", "leases"}};
  std::vector<std::vector<std::string>> names{{"gpu", "<uuid", "free", "<pci"}};
  std::vector<std::vector<std::string>> holders{{"gpu", "pid", "<user", "memory", "<command"}};
  for (const json& d : devices) {
    const std::string index = d["index"].dump();
    rows.push_back({index, printable(d["name"].get<std::string>(), 15), with_unit(d["temperature_c"], "C"),
                    power_text(d), with_unit(d["busy_percent"], "%"), memory_text(d["used_bytes"], d["total_bytes"]),
                    fmt::format("{}", d["processes"].size()), d["leases"].is_null() ? "-" : d["leases"].dump()});
    names.push_back({index, printable(d["uuid"].get<std::string>(), 44), size_or_unknown(d["free_bytes"]),
                     printable(d["pci_bus_id"].get<std::string>(), 16)});
    for (const json& i : d["instances"]) {
      rows.push_back({index, " MIG instance", "", "", "", memory_text(i["used_bytes"], i["total_bytes"]), "", ""});
      names.push_back({index, printable(i["uuid"].get<std::string>(), 44), size_or_unknown(i["free_bytes"]), ""});
    }
    for (const json& p : d["processes"]) {
      holders.push_back({index, p["pid"].dump(), p["user"].get<std::string>(), size_or_unknown(p["used_bytes"]),
                         p["command"].get<std::string>()});
    }
  }
  std::string text = table(rows) + "\n" + table(names);
  if (holders.size() > 1) text += "\n" + table(holders);
  for (const json& d : devices) text += source_line(d);
  return text;
}

}  // namespace gpumem::cli
