#include "merge.hpp"

#include <fmt/format.h>

#include <cstdio>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>

#include "assign_or_return.hpp"
#include "child.hpp"
#include "folder.hpp"
#include "inputs.hpp"
#include "json_line.hpp"
#include "log.hpp"
#include "page.hpp"
#include "summary.hpp"
#include "text.hpp"
#include "whole_file.hpp"

namespace gpumem::bench::sweep {
namespace {

namespace fs = std::filesystem;
using json = nlohmann::ordered_json;
using file_pointer = std::unique_ptr<std::FILE, int (*)(std::FILE*)>;

/// Reads the rows of a folder again, one at a time.
class row_reader {
 public:
  explicit row_reader(const found_results& results) {
    for (const std::string& path : results.files) files_.emplace_back(std::fopen(path.c_str(), "rbe"), std::fclose);
  }
  bool read(const row_place& location, std::string& row) {
    std::FILE* const file = files_[location.file].get();
    row.resize(location.length);
    return file != nullptr && ::fseeko(file, static_cast<off_t>(location.offset), SEEK_SET) == 0 &&
           std::fread(row.data(), 1, location.length, file) == location.length;
  }

 private:
  std::vector<file_pointer> files_;
};

struct merged {
  folder_plan plan;
  found_results found;
  std::uint64_t missing = 0;
  std::uint64_t failed = 0;
};

result<merged> gather(const merge_options& options) {
  ASSIGN_OR_RETURN(auto plan, read_folder_plan(options.folder));
  ASSIGN_OR_RETURN(auto found, find_results(options.folder));
  merged merged_sweep{std::move(plan), std::move(found), 0, 0};
  for (const auto& [key, trace] : merged_sweep.plan.units) {
    const auto known = merged_sweep.found.rows.find(key);
    merged_sweep.missing += known == merged_sweep.found.rows.end() ? 1U : 0U;
    merged_sweep.failed += known != merged_sweep.found.rows.end() && known->second.failed ? 1U : 0U;
  }
  if (merged_sweep.missing != 0 && !options.partial) {
    return status{
        errc::bad_setting,
        fmt::format("{}: {} of {} units have no result yet; start the sweep again, or merge what there is with "
                    "--partial",
                    printable(options.folder, 4096), merged_sweep.missing, merged_sweep.plan.units.size())};
  }
  if (merged_sweep.missing == merged_sweep.plan.units.size()) {
    return status{errc::bad_setting, printable(options.folder, 4096) + ": no results; expected at least one"};
  }
  return merged_sweep;
}

/// Calls `each(row)` in the order of the plan, with the trace's name inserted after the key.
status for_each_row(const merged& merged_sweep, const std::function<bool(std::string_view)>& each) {
  row_reader reader{merged_sweep.found};
  std::string row;
  constexpr std::size_t key_length = sizeof("{\"key\":\"") - 1 + 32 + 1;
  for (const auto& [key, trace] : merged_sweep.plan.units) {
    const auto known = merged_sweep.found.rows.find(key);
    if (known == merged_sweep.found.rows.end()) continue;
    if (!reader.read(known->second, row)) {
      return {errc::bad_setting, fmt::format("{}: cannot be read", merged_sweep.found.files[known->second.file])};
    }
    row.insert(key_length, ",\"trace\":" + json_line(merged_sweep.plan.traces[trace]));
    if (!each(row)) return {errc::bad_setting, "cannot be written"};
  }
  return {};
}

std::uint64_t count_at(const json& calls, const char* name) {
  return calls.contains(name) && calls[name].is_number() ? calls[name].get<std::uint64_t>() : 0;
}

summary_row summary_of(const json& row) {
  summary_row summarized;
  summarized.trace = row["trace"];
  summarized.policy = row["policy"];
  const std::string capacity = row["capacity"];
  summarized.rest = fmt::format("{}{}{}{}", row["device"].get<std::string>(), capacity.empty() ? "" : ", capacity ",
                                capacity, row["seed"] == 1 ? "" : ", seed " + row["seed"].dump());
  summarized.failed = row.contains("error");
  if (summarized.failed) return summarized;
  const json used = row.value("utilization", json{});
  summarized.utilization = used.is_number() ? used.get<double>() : 0;
  if (row["mode"] == "fit") {
    summarized.oom = !used.is_number();
    return summarized;
  }
  summarized.oom = row["oom"];
  summarized.takes_everything = row["takes_everything"];
  summarized.device_ms = row["modelled_device_ms"];
  for (const char* name : {"alloc", "free", "map", "unmap", "synchronize"}) {
    summarized.device_calls += static_cast<double>(count_at(row["device_calls"], name));
  }
  return summarized;
}

status make_summary(const merged& merged_sweep, json& figures) {
  summary all;
  status read = for_each_row(merged_sweep, [&](std::string_view row) {
    all.add(summary_of(json::parse(row)));
    return true;
  });
  figures = all.to_json();
  return read;
}

json head_of(const merged& merged_sweep, json summary) {
  return json{{"schema", 1},
              {"command", "sweep"},
              {"simulated", true},
              {"version", merged_sweep.plan.version},
              {"mode", merged_sweep.plan.mode},
              {"manifest", json::parse(merged_sweep.plan.manifest_text)},
              {"units", merged_sweep.plan.units.size()},
              {"missing", merged_sweep.missing},
              {"failed", merged_sweep.failed},
              {"summary", std::move(summary)}};
}

status write_json(const std::string& path, const merged& merged_sweep, json summary) {
  status rows;
  status written = write_whole(path, [&](std::FILE* file) {
    std::string head = "{";
    const json all = head_of(merged_sweep, std::move(summary));
    for (const auto& [key, value] : all.items()) head += fmt::format("\"{}\":{},\n", key, json_line(value));
    bool first = true;
    bool good = std::fputs((head + "\"results\":[").c_str(), file) >= 0;
    rows = for_each_row(merged_sweep, [&](std::string_view row) {
      good = good && std::fputs(first ? "\n" : ",\n", file) >= 0 &&
             std::fwrite(row.data(), 1, row.size(), file) == row.size();
      first = false;
      return good;
    });
    return rows.ok() && std::fputs("\n]}\n", file) >= 0;
  });
  return rows.ok() || written.ok() ? written : status{rows.code(), fmt::format("{}: {}", path, rows.message())};
}

status write_page(const std::string& path, const merged& merged_sweep, json summary) {
  if (status can = page_available(); !can) return can;
  json data = head_of(merged_sweep, std::move(summary));
  data["title"] = merged_sweep.plan.mode == "fit" ? "gpumem: the smallest card, over many traces"
                                                  : "gpumem: policies over many traces";
  data["subtitle"] = fmt::format(
      "All simulated: {} units on {} traces.{}{}", merged_sweep.plan.units.size(), merged_sweep.plan.traces.size(),
      merged_sweep.failed == 0 ? "" : fmt::format(" {} units failed.", merged_sweep.failed),
      merged_sweep.missing == 0 ? "" : fmt::format(" {} units have no result yet.", merged_sweep.missing));
  data["made_by"] = fmt::format("gpumem_bench merge, of a sweep by {}", merged_sweep.plan.version);
  const std::string page = make_sweep_page(json_line(data));
  return write_whole(path, [&](std::FILE* file) { return write_text(file, page); });
}

/// Installed with the program, else in the source tree.
std::string parquet_script() {
  const fs::path installed = fs::path{bundled_traces_folder()}.parent_path() / "sweep_to_parquet.py";
  std::error_code ignored;
  if (fs::exists(installed, ignored)) return installed.string();
  return (fs::path{bundled_traces_folder()}.parent_path().parent_path() / "scripts" / "sweep_to_parquet.py").string();
}

status write_parquet(const std::string& path, const merged& merged_sweep, json summary) {
  const std::string temporary = path + ".json.new";
  if (status written = write_json(temporary, merged_sweep, std::move(summary)); !written) return written;
  const auto ran =
      run_child("/usr/bin/env", {"python3", parquet_script(), temporary, path}, "", std::chrono::hours{24});
  std::error_code ignored;
  fs::remove(temporary, ignored);
  if (!ran) return ran.why();
  if (ran->exit_status == 0 && ran->signal == 0) return {};
  const std::size_t end = ran->err.find_last_not_of("\n ");
  const std::size_t line = end == std::string::npos ? 0 : ran->err.rfind('\n', end) + 1;
  return {errc::bad_setting, fmt::format("{}: {} failed: {}", printable(path, 4096), parquet_script(),
                                         printable(ran->err.substr(line, end - line + 1), 400))};
}

}  // namespace

status merge(const merge_options& options) {
  const auto ends = [&](std::string_view ending) { return options.output.ends_with(ending); };
  if (!ends(".json") && !ends(".html") && !ends(".parquet")) {
    return {errc::bad_setting, fmt::format("-o {}: expected a name that ends in .json, .html or .parquet",
                                           printable(options.output, 4096))};
  }
  ASSIGN_OR_RETURN(const auto all, gather(options));
  json made;
  if (status read = make_summary(all, made); !read) return read;
  if (all.missing != 0) log_line(fmt::format("{} of {} units have no result yet", all.missing, all.plan.units.size()));
  if (ends(".html")) return write_page(options.output, all, std::move(made));
  return ends(".json") ? write_json(options.output, all, std::move(made))
                       : write_parquet(options.output, all, std::move(made));
}

}  // namespace gpumem::bench::sweep
