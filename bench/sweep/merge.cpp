#include "merge.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>

#include "child.hpp"
#include "folder.hpp"
#include "inputs.hpp"
#include "log.hpp"
#include "page.hpp"
#include "summary.hpp"
#include "text.hpp"

namespace gpumem::bench::sweep {
namespace {

namespace fs = std::filesystem;
using json = nlohmann::ordered_json;
using file_pointer = std::unique_ptr<std::FILE, int (*)(std::FILE*)>;

std::string dumped(const json& value) { return value.dump(-1, ' ', false, json::error_handler_t::replace); }

/// Reads the rows of a folder again, one at a time.
class row_reader {
 public:
  explicit row_reader(const found_results& from) {
    for (const std::string& path : from.files) files_.emplace_back(std::fopen(path.c_str(), "rbe"), std::fclose);
  }
  bool read(const row_place& at, std::string& into) {
    std::FILE* const file = files_[at.file].get();
    into.resize(at.length);
    return file != nullptr && ::fseeko(file, static_cast<off_t>(at.offset), SEEK_SET) == 0 &&
           std::fread(into.data(), 1, at.length, file) == at.length;
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

result<merged> gather(const merge_options& with) {
  auto plan = read_folder_plan(with.folder);
  if (!plan) return plan.why();
  auto found = find_results(with.folder);
  if (!found) return found.why();
  merged out{*std::move(plan), *std::move(found), 0, 0};
  for (const auto& [key, trace] : out.plan.units) {
    const auto known = out.found.rows.find(key);
    out.missing += known == out.found.rows.end() ? 1U : 0U;
    out.failed += known != out.found.rows.end() && known->second.failed ? 1U : 0U;
  }
  if (out.missing != 0 && !with.partial) {
    return status{
        errc::bad_setting,
        fmt::format("{}: {} of {} units have no result yet; start the sweep again, or merge what there is with "
                    "--partial",
                    printable(with.folder, 4096), out.missing, out.plan.units.size())};
  }
  if (out.missing == out.plan.units.size()) {
    return status{errc::bad_setting, printable(with.folder, 4096) + ": no results; expected at least one"};
  }
  return out;
}

/// Calls `each(row)` in the order of the plan, with the trace's name inserted after the key.
status for_each_row(const merged& of, const std::function<bool(std::string_view)>& each) {
  row_reader reader{of.found};
  std::string row;
  constexpr std::size_t key_length = sizeof("{\"key\":\"") - 1 + 32 + 1;
  for (const auto& [key, trace] : of.plan.units) {
    const auto known = of.found.rows.find(key);
    if (known == of.found.rows.end()) continue;
    if (!reader.read(known->second, row)) {
      return {errc::bad_setting, fmt::format("{}: cannot be read", of.found.files[known->second.file])};
    }
    row.insert(key_length, ",\"trace\":" + dumped(of.plan.traces[trace]));
    if (!each(row)) return {errc::bad_setting, "cannot be written"};
  }
  return {};
}

std::uint64_t count_at(const json& calls, const char* name) {
  return calls.contains(name) && calls[name].is_number() ? calls[name].get<std::uint64_t>() : 0;
}

summary_row summary_of(const json& row) {
  summary_row out;
  out.trace = row["trace"];
  out.policy = row["policy"];
  const std::string capacity = row["capacity"];
  out.rest = fmt::format("{}{}{}{}", row["device"].get<std::string>(), capacity.empty() ? "" : ", capacity ", capacity,
                         row["seed"] == 1 ? "" : ", seed " + row["seed"].dump());
  out.failed = row.contains("error");
  if (out.failed) return out;
  const json used = row.value("utilization", json{});
  out.utilization = used.is_number() ? used.get<double>() : 0;
  if (row["mode"] == "fit") {
    out.oom = !used.is_number();
    return out;
  }
  out.oom = row["oom"];
  out.takes_everything = row["takes_everything"];
  out.device_ms = row["modelled_device_ms"];
  for (const char* name : {"alloc", "free", "map", "unmap", "synchronize"}) {
    out.device_calls += static_cast<double>(count_at(row["device_calls"], name));
  }
  return out;
}

status make_summary(const merged& of, json& into) {
  summary all;
  status read = for_each_row(of, [&](std::string_view row) {
    all.add(summary_of(json::parse(row)));
    return true;
  });
  into = all.to_json();
  return read;
}

json head_of(const merged& of, json summary) {
  return json{{"schema", 1},
              {"command", "sweep"},
              {"simulated", true},
              {"version", of.plan.version},
              {"mode", of.plan.mode},
              {"manifest", json::parse(of.plan.manifest_text)},
              {"units", of.plan.units.size()},
              {"missing", of.missing},
              {"failed", of.failed},
              {"summary", std::move(summary)}};
}

status write_json(const std::string& path, const merged& of, json summary) {
  status rows;
  status written = write_whole(path, [&](std::FILE* file) {
    std::string head = "{";
    const json all = head_of(of, std::move(summary));
    for (const auto& [key, value] : all.items()) head += fmt::format("\"{}\":{},\n", key, dumped(value));
    bool first = true;
    bool good = std::fputs((head + "\"results\":[").c_str(), file) >= 0;
    rows = for_each_row(of, [&](std::string_view row) {
      good = good && std::fputs(first ? "\n" : ",\n", file) >= 0 &&
             std::fwrite(row.data(), 1, row.size(), file) == row.size();
      first = false;
      return good;
    });
    return rows.ok() && std::fputs("\n]}\n", file) >= 0;
  });
  return rows.ok() || written.ok() ? written : status{rows.code(), fmt::format("{}: {}", path, rows.message())};
}

status write_page(const std::string& path, const merged& of, json summary) {
  if (status can = page_available(); !can) return can;
  json data = head_of(of, std::move(summary));
  data["title"] =
      of.plan.mode == "fit" ? "gpumem: the smallest card, over many traces" : "gpumem: policies over many traces";
  data["subtitle"] =
      fmt::format("All simulated: {} units on {} traces.{}{}", of.plan.units.size(), of.plan.traces.size(),
                  of.failed == 0 ? "" : fmt::format(" {} units failed.", of.failed),
                  of.missing == 0 ? "" : fmt::format(" {} units have no result yet.", of.missing));
  data["made_by"] = fmt::format("gpumem_bench merge, of a sweep by {}", of.plan.version);
  const std::string page = make_sweep_page(dumped(data));
  return write_whole(path,
                     [&](std::FILE* file) { return std::fwrite(page.data(), 1, page.size(), file) == page.size(); });
}

/// Installed with the program, else in the source tree.
std::string parquet_script() {
  const fs::path installed = fs::path{bundled_traces_folder()}.parent_path() / "sweep_to_parquet.py";
  std::error_code ignored;
  if (fs::exists(installed, ignored)) return installed.string();
  return (fs::path{bundled_traces_folder()}.parent_path().parent_path() / "scripts" / "sweep_to_parquet.py").string();
}

status write_parquet(const std::string& path, const merged& of, json summary) {
  const std::string temporary = path + ".json.new";
  if (status written = write_json(temporary, of, std::move(summary)); !written) return written;
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

status merge(const merge_options& with) {
  const auto ends = [&](std::string_view ending) { return with.output.ends_with(ending); };
  if (!ends(".json") && !ends(".html") && !ends(".parquet")) {
    return {errc::bad_setting,
            fmt::format("-o {}: expected a name that ends in .json, .html or .parquet", printable(with.output, 4096))};
  }
  const auto all = gather(with);
  if (!all) return all.why();
  json made;
  if (status read = make_summary(*all, made); !read) return read;
  if (all->missing != 0)
    log_line(fmt::format("{} of {} units have no result yet", all->missing, all->plan.units.size()));
  if (ends(".html")) return write_page(with.output, *all, std::move(made));
  return ends(".json") ? write_json(with.output, *all, std::move(made))
                       : write_parquet(with.output, *all, std::move(made));
}

}  // namespace gpumem::bench::sweep
