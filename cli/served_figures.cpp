#include "served_figures.hpp"

#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <vector>

#include "device_figures.hpp"
#include "gpumem/settings.hpp"
#include "process_files.hpp"
#include "shared_folder.hpp"
#include "status_socket.hpp"
#include "text.hpp"

namespace gpumem::cli {
namespace {

using nlohmann::json;

constexpr std::chrono::milliseconds answer_timeout{200};  // a stopped process does not answer
constexpr std::chrono::seconds longest_trim{5};           // frees in the driver may take long
constexpr std::chrono::seconds longest_dump{60};          // a dump may have millions of events

std::vector<std::string> folders() {
  settings config;  // used only for the folder, so other settings may be bad
  environment variables = process_environment();
  std::erase_if(variables, [](const auto& each) { return each.first != "GPUMEM_SHARED_FOLDER"; });
  static_cast<void>(config.apply(variables).ok());
  std::vector<std::string> paths;
  if (const result<std::string> own = shared_folder(config.shared_folder)) paths.push_back(*own);
  if (::geteuid() != 0 || !config.shared_folder.empty()) return paths;
  std::error_code ignored;
  for (const auto& entry : std::filesystem::directory_iterator{"/dev/shm", ignored}) {
    const std::string path = entry.path().string();
    const bool folder = entry.is_directory(ignored) && !entry.is_symlink(ignored);
    if (folder && entry.path().filename().string().starts_with("gpumem-") &&
        std::find(paths.begin(), paths.end(), path) == paths.end()) {
      paths.push_back(path);
    }
  }
  return paths;
}

/// The row of a process. Replaces missing or ill-typed fields by empty ones, because another program wrote the answer.
json row_of(const served_process& process) {
  const json answer = json::parse(process.answer, nullptr, false);
  json row{{"pid", process.pid},
           {"user", user_of(static_cast<unsigned>(process.pid))},
           {"command", command_of(static_cast<unsigned>(process.pid))},
           {"executable", command_of(static_cast<unsigned>(process.pid))},
           {"answered", false},
           {"group", ""},
           {"devices", json::array()}};
  if (!answer.is_object() || answer.value("schema", 0) != 1 || !answer.contains("devices") ||
      !answer["devices"].is_array()) {
    return row;
  }
  const json& rows = answer["devices"];
  if (!std::all_of(rows.begin(), rows.end(), [](const json& entry) { return entry.is_object(); })) return row;
  row["answered"] = true;
  if (answer.contains("command") && answer["command"].is_string()) row["command"] = answer["command"];
  if (answer.contains("group") && answer["group"].is_string()) row["group"] = answer["group"];
  for (const json& d : rows) {
    json figures;
    for (const char* text : {"name", "uuid", "policy"}) {
      figures[text] = d.contains(text) && d[text].is_string() ? d[text] : json("");
    }
    for (const char* number : {"ordinal", "limit_bytes", "live_bytes", "reserved_bytes", "free_bytes",
                               "largest_free_bytes", "allocations", "out_of_memory"}) {
      figures[number] = d.contains(number) && d[number].is_number_unsigned() ? d[number] : json(0U);
    }
    const char* const share = "external_fragmentation";
    figures[share] = d.contains(share) && d[share].is_number() ? d[share] : json(0.0);
    row["devices"].push_back(std::move(figures));
  }
  return row;
}

}  // namespace

json served_figures() {
  json figures = json::array();
  for (const std::string& folder : folders()) {
    for (const served_process& process : ask_served(folder, answer_timeout)) {
      try {
        figures.push_back(row_of(process));
      } catch (const json::exception&) {  // not an answer of gpumem
        figures.push_back(row_of({process.pid, ""}));
      }
    }
  }
  return figures;
}

namespace {

/// The name of the program: `python3` for `/usr/bin/python3 train.py`.
std::string name_of(const std::string& command) {
  const std::string first = command.substr(0, command.find(' '));
  return printable(first.substr(first.rfind('/') + 1), 8);
}

}  // namespace

std::string served_table(const json& served, const json& devices) {
  if (served.empty()) return "no process is served by gpumem\n";
  const auto size = [](const json& bytes) { return format_bytes(bytes.get<std::uint64_t>()); };
  std::vector<std::vector<std::string>> rows{
      {"gpu", "pid", "<policy", "limit", "live", "reserved", "frag", "<command"}};
  for (const json& p : served) {
    const std::string pid = p["pid"].dump();
    const std::string command = name_of(p["command"].get<std::string>());
    if (!p["answered"]) rows.push_back({"-", pid, "no answer", "", "", "", "", command});
    for (const json& d : p["devices"]) {
      rows.push_back({gpu_of(d, devices), pid, printable(d["policy"].get<std::string>(), 10), size(d["limit_bytes"]),
                      size(d["live_bytes"]), size(d["reserved_bytes"]),
                      fmt::format("{:.0f} %", 100 * d["external_fragmentation"].get<double>()), command});
    }
  }
  return table(rows);
}

std::string gpu_of(const json& pool, const json& devices) {
  const std::string uuid = pool["uuid"];
  for (const json& d : devices) {
    if (d["uuid"] == uuid) return d["index"].dump();
    for (const json& i : d["instances"]) {
      if (i["uuid"] == uuid) return d["index"].dump();
    }
  }
  return "-";
}

status dump_served(unsigned pid, std::string_view contents, int descriptor) {
  const auto refused = [pid](std::string_view why) {
    return status{errc::invalid_argument, fmt::format("process {} {}", pid, why)};
  };
  const std::string process = fmt::format("/proc/{}", pid);
  struct stat found {};
  if (::stat(process.c_str(), &found) != 0) {
    return refused("does not exist; expected the PID of a program that gpumem serves (gpumem top shows them)");
  }
  for (const std::string& folder : folders()) {
    const std::optional<std::string> answer =
        ask_to_dump(folder, static_cast<int>(pid), contents, descriptor, longest_dump);
    if (!answer) continue;
    if (*answer == dump_written) return {};
    if (answer->empty()) {
      return refused("does not answer: it is stopped, or in a long call of the driver; try again");
    }
    if (answer->front() == '{') return refused("is served by an earlier gpumem; start it with this version to dump it");
    return refused(printable(*answer, 1024));
  }
  if (::geteuid() != 0 && found.st_uid != ::geteuid()) {
    return refused("belongs to another user; run this as that user, or as root");
  }
  return refused(
      "is not served by gpumem, has allocated nothing yet, or runs with GPUMEM_PUBLISH=0; gpumem top shows the served "
      "ones");
}

bool trim_served(int pid) {
  for (const std::string& folder : folders()) {
    if (ask_to_trim(folder, pid, longest_trim)) return true;
  }
  return false;
}

}  // namespace gpumem::cli
