#include "folder.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <optional>
#include <system_error>

#include "log.hpp"
#include "result_file.hpp"
#include "text.hpp"
#include "unit.hpp"
#include "whole_file.hpp"

namespace gpumem::bench::sweep {
namespace {

namespace fs = std::filesystem;
using json = nlohmann::ordered_json;

constexpr std::string_view key_begin = "{\"key\":\"";
constexpr std::size_t key_digits = 32;

std::optional<hash128> parse_key(std::string_view text) {
  hash128 key{};
  if (text.size() < key_digits) return std::nullopt;
  for (std::size_t part = 0; part < 2; ++part) {
    const auto half = whole_number<std::uint64_t>(text.substr(part * 16, 16), 16);
    if (!half) return std::nullopt;
    key.at(part) = *half;
  }
  return key;
}

std::optional<hash128> key_of(std::string_view row) {
  if (!row.starts_with(key_begin)) return std::nullopt;
  return parse_key(row.substr(key_begin.size()));
}

std::string sweep_text(const sweep_plan& plan) {
  return json{{"schema", 1}, {"version", plan.version}, {"manifest", json::parse(plan.definition.text)}}.dump(2) + "\n";
}

status same_sweep(const std::string& folder, const sweep_plan& plan) {
  const json stored = json::parse(content_of(folder + "/sweep.json"), nullptr, false);
  const std::string shown = printable(folder, 4096);
  if (stored.is_discarded() || !stored.contains("version") || !stored.contains("manifest")) {
    return {errc::bad_setting, shown + "/sweep.json: damaged; expected a sweep's folder, or an empty one"};
  }
  if (stored["version"] != plan.version) {
    return {errc::bad_setting, fmt::format("{}: holds results of version {}, this is {}; expected another folder",
                                           shown, stored["version"].dump(), plan.version)};
  }
  const json requested = json::parse(plan.definition.text);
  for (const auto& [key, value] : requested.items()) {
    if (!stored["manifest"].contains(key) || stored["manifest"][key] != value) {
      return {errc::bad_setting,
              fmt::format("{}: holds results of another manifest, which differs in \"{}\"; expected another folder",
                          shown, key)};
    }
  }
  return {};
}

std::string units_text(const sweep_plan& plan) {
  std::string text;
  for (const unit& each : plan.units) text += fmt::format("{} {}\n", hex(each.key), each.trace);
  text += "traces\n";
  for (const trace_source& each : plan.traces) {
    text += json(each.name).dump(-1, ' ', true, json::error_handler_t::replace) + "\n";
  }
  return text;
}

status write_if_changed(const std::string& path, const std::string& text) {
  if (content_of(path) == text) return {};
  return write_whole(path, [&](std::FILE* file) { return write_text(file, text); });
}

}  // namespace

status write_whole(const std::string& path, const std::function<bool(std::FILE*)>& write) {
  const int error = write_and_rename(path, write);
  if (error == 0) return {};
  return {errc::bad_setting, fmt::format("{}: cannot be written: {}", printable(path, 4096), std::strerror(error))};
}

status prepare_folder(const std::string& folder, const sweep_plan& plan) {
  std::error_code why;
  fs::create_directories(folder, why);
  if (why) {
    return {errc::bad_setting, fmt::format("{}: cannot be made: {}", printable(folder, 4096), why.message())};
  }
  if (fs::exists(folder + "/sweep.json", why)) {
    if (status same = same_sweep(folder, plan); !same) return same;
  } else {
    const auto first = fs::directory_iterator{folder, why};
    const bool foreign = !why && std::any_of(first, fs::directory_iterator{}, [](const fs::directory_entry& each) {
      const std::string name = each.path().filename().string();
      return !name.starts_with("sweep.json") && !name.starts_with("units.txt") && !name.starts_with("results-") &&
             !name.starts_with("times-") && !name.starts_with(".");
    });
    if (foreign) {
      return {errc::bad_setting,
              fmt::format("{}: holds other files; expected a sweep's folder or an empty one", printable(folder, 4096))};
    }
  }
  if (status written = write_if_changed(folder + "/units.txt", units_text(plan)); !written) return written;
  return write_if_changed(folder + "/sweep.json", sweep_text(plan));
}

result<found_results> find_results(const std::string& folder) {
  found_results found;
  std::error_code why;
  for (fs::directory_iterator entry{folder, why}, end; !why && entry != end; entry.increment(why)) {
    const std::string name = entry->path().filename().string();
    if (name.starts_with("results-") && name.ends_with(".jsonl")) found.files.push_back(entry->path().string());
  }
  if (why) return status{errc::bad_setting, fmt::format("{}: {}", printable(folder, 4096), why.message())};
  std::sort(found.files.begin(), found.files.end());
  for (std::uint32_t i = 0; i < found.files.size(); ++i) {
    if (!fs::is_regular_file(found.files[i], why)) continue;
    const auto damaged = read_results(found.files[i], [&](std::string_view row, std::uint64_t offset) {
      const auto key = key_of(row);
      if (!key) return;
      const row_place location{i, is_error_row(row), offset, row.size()};
      const auto [known, added] = found.rows.emplace(*key, location);
      if (!added && known->second.failed) known->second = location;
    });
    if (!damaged) return damaged.why();
    if (*damaged != 0) {
      log_line(fmt::format("{}: {} damaged lines count for nothing", found.files[i], *damaged));
    }
  }
  return found;
}

result<std::vector<std::uint32_t>> units_left(const std::string& folder, const sweep_plan& plan, bool again) {
  const auto found = find_results(folder);
  if (!found) return found.why();
  std::vector<std::uint32_t> left;
  std::copy_if(plan.order.begin(), plan.order.end(), std::back_inserter(left), [&](std::uint32_t unit_index) {
    const auto known = found->rows.find(plan.units[unit_index].key);
    return known == found->rows.end() || (again && known->second.failed);
  });
  return left;
}

result<folder_plan> read_folder_plan(const std::string& folder) {
  const std::string shown = printable(folder, 4096);
  const json head = json::parse(content_of(folder + "/sweep.json"), nullptr, false);
  if (head.is_discarded() || !head.contains("manifest") || !head.contains("version")) {
    return status{errc::bad_setting, shown + ": no sweep's folder; expected one that gpumem_bench sweep wrote"};
  }
  folder_plan loaded{head["version"], head["manifest"].dump(), head["manifest"]["mode"], {}, {}};
  std::ifstream file{folder + "/units.txt"};
  std::string line;
  while (std::getline(file, line) && line != "traces") {
    const auto key = parse_key(line);
    const auto trace = line.size() < key_digits + 2
                           ? std::nullopt
                           : whole_number<std::uint32_t>(std::string_view{line}.substr(key_digits + 1));
    if (!key || !trace) {
      return status{errc::bad_setting, shown + "/units.txt: damaged; starting the sweep again rewrites it"};
    }
    loaded.units.emplace_back(*key, *trace);
  }
  while (std::getline(file, line)) {
    const json name = json::parse(line, nullptr, false);
    loaded.traces.push_back(name.is_string() ? name.get<std::string>() : "?");
  }
  const bool known = std::all_of(loaded.units.begin(), loaded.units.end(),
                                 [&](const auto& each) { return each.second < loaded.traces.size(); });
  if (loaded.units.empty() || !known) {
    return status{errc::bad_setting, shown + "/units.txt: damaged; starting the sweep again rewrites it"};
  }
  return loaded;
}

}  // namespace gpumem::bench::sweep
