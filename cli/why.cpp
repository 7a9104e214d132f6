// The recording up to the refusal, with the refused request as its last operation, goes through the replay of `advise`.
#include "why.hpp"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>

#include "bench_page.hpp"
#include "binary_trace.hpp"
#include "bits.hpp"
#include "device_figures.hpp"
#include "diagnosis.hpp"
#include "dump.hpp"
#include "fail.hpp"
#include "gpumem/settings.hpp"
#include "live_memory.hpp"
#include "next_steps.hpp"
#include "output_file.hpp"
#include "process_recording.hpp"
#include "temporary_folder.hpp"
#include "text.hpp"
#include "units.hpp"

namespace gpumem::cli {
namespace {

namespace fs = std::filesystem;
using json = nlohmann::ordered_json;

constexpr int nothing_serves = 3;
constexpr std::size_t shown_groups = 6;
constexpr std::size_t longest_path = 4096;

json groups_of(const std::vector<live_group>& groups, const char* key) {
  json rows = json::array();
  for (const live_group& each : groups)
    rows.push_back({{key, each.key}, {"live_bytes", each.bytes}, {"blocks", each.blocks}});
  return rows;
}

json moment_of(const live_memory& held) {
  return {{"ops", held.ops},
          {"live_bytes", held.bytes},
          {"blocks", held.blocks},
          {"by_size", groups_of(held.by_size, "size_bytes")},
          {"by_stream", groups_of(held.by_stream, "stream")}};
}

std::string moment_text(const std::string& heading, const live_memory& held) {
  const auto share = [&](std::uint64_t bytes) {
    return fmt::format("{:.0f} %",
                       held.bytes == 0 ? 0.0 : 100.0 * static_cast<double>(bytes) / static_cast<double>(held.bytes));
  };
  std::string text = fmt::format("\n{}, after {} operations: {} live, blocks: {}\n", heading, held.ops,
                                 format_bytes(held.bytes), held.blocks);
  if (held.blocks == 0) return text;
  std::vector<std::vector<std::string>> rows{{"<blocks of", "live", "share", "blocks"}};
  const auto add = [&](const std::vector<live_group>& groups, const auto& name) {
    for (std::size_t i = 0; i < groups.size() && i < shown_groups; ++i) {
      rows.push_back({name(groups[i].key), format_bytes(groups[i].bytes), share(groups[i].bytes),
                      fmt::format("{}", groups[i].blocks)});
    }
    if (groups.size() > shown_groups)
      rows.push_back({fmt::format("{} more", groups.size() - shown_groups), "", "", ""});
  };
  add(held.by_size, [](std::uint64_t bytes) { return format_bytes(bytes); });
  add(held.by_stream, [](std::uint64_t stream) { return fmt::format("stream {:#x}", stream); });
  return text + table(rows);
}

std::string settings_text(const diagnosis& diagnosed, const json& serve, const std::string& path,
                          const std::string& name) {
  if (diagnosed.grows_for_ever) return fmt::format("\n{}\n", grows_for_ever_text);
  if (serve.empty()) return "\nNo policy and no setting serves it; free memory or ask for less.\n";
  const bool more_memory = serve.front()["more_memory"];
  const bool goes_on = serve.front()["next_refusal_after_ops"].is_null();
  std::string text = more_memory ? "\nNothing serves it within this memory. With more (replayed up to this request):\n"
                     : goes_on   ? "\nServed by (replayed through this request, and on as the program went before):\n"
                                 : "\nServed by, but not what follows if the program goes on as before:\n";
  bool plan = false;
  for (const json& each : serve) {
    plan |= each["own_plan"].get<bool>();
    text += fmt::format("  {}   ({} reserved at the peak{})\n", each["set"].get<std::string>(),
                        format_bytes(each["peak_reserved_bytes"].get<std::uint64_t>()),
                        goes_on ? ""
                                : fmt::format("; refuses after {} operations more",
                                              each["next_refusal_after_ops"].get<std::uint64_t>()));
  }
  if (plan) text += fmt::format("  planned follows a plan: gpumem plan {} -o {}.plan\n", path, name);
  return text;
}

json as_json(const bench::trace& recorded, const live_memory& peak, const std::optional<diagnosis>& diagnosed,
             const json& serve) {
  json all{{"schema", 1},
           {"simulated", true},
           {"trace", recorded.name},
           {"ops", recorded.ops.size()},
           {"cut", recorded.cut.empty() ? json(nullptr) : json(recorded.cut)},
           {"refused", recorded.refused.size()},
           {"at_peak", moment_of(peak)},
           {"request", nullptr},
           {"at_refusal", nullptr},
           {"capacity_bytes", nullptr},
           {"cause", nullptr},
           {"explanation", nullptr},
           {"grows_for_ever", diagnosed && diagnosed->grows_for_ever},
           {"served_by", serve}};
  if (!diagnosed) return all;
  all["request"] = {{"bytes", diagnosed->request.bytes},
                    {"stream", recorded.streams[diagnosed->request.stream]},
                    {"policy", recorded.refusing_policy.empty() ? json(nullptr) : json(recorded.refusing_policy)}};
  all["at_refusal"] = moment_of(diagnosed->held);
  if (diagnosed->capacity_bytes != 0) all["capacity_bytes"] = diagnosed->capacity_bytes;
  all["cause"] = diagnosed->cause;
  all["explanation"] = explanation(*diagnosed);
  return all;
}

std::string as_text(const bench::trace& recorded, const std::string& shown, const live_memory& peak,
                    const std::optional<diagnosis>& diagnosed, const json& serve) {
  std::string text = fmt::format("{}: operations: {}, refused requests: {}. Simulated.\n", shown, recorded.ops.size(),
                                 recorded.refused.size());
  if (!diagnosed) return text + "No request was refused in this recording.\n" + moment_text("At the peak", peak);
  const std::string by_policy = recorded.refusing_policy.empty() ? "" : fmt::format(" by {}", recorded.refusing_policy);
  text += fmt::format("Refused{}: {} on stream {:#x}, after {} operations.\nCause: {}.\n", by_policy,
                      format_bytes(diagnosed->request.bytes), recorded.streams[diagnosed->request.stream],
                      diagnosed->request.before_op, explanation(*diagnosed));
  if (peak.ops != diagnosed->held.ops) text += moment_text("At the peak", peak);
  return text + moment_text("At the refusal", diagnosed->held) + settings_text(*diagnosed, serve, shown, recorded.name);
}

/// Writes the page: the text, then charts and maps of the policy that refused and of those that serve.
status make_page(const std::string& path, const std::string& text, const bench::trace& shown,
                 const diagnosis* diagnosed, const json& serve) {
  const temporary_folder folder{"gpumem-why-"};
  if (folder.path().empty()) return {errc::unsupported, "--html: cannot create a folder in TMPDIR"};
  const std::string trace = fmt::format("{}/{}.gmtrace", folder.path(), shown.name.empty() ? "recording" : shown.name);
  const std::string note = folder.path() + "/note.txt";
  if (status written = bench::write_trace(trace, shown); !written) return written;
  if (status written = bench::output_file{"--html", note}.write(text); !written) return written;
  const std::string limit = diagnosed != nullptr && diagnosed->capacity_bytes != 0
                                ? fmt::format(",limit={}", exact_bytes(diagnosed->capacity_bytes))
                                : "";
  const std::string refused = shown.refusing_policy.empty() ? settings{}.policy : shown.refusing_policy;
  std::vector<std::string> policies{refused + limit};
  for (const json& each : serve) {
    const std::string row = each["policy"].get<std::string>() + (each["more_memory"].get<bool>() ? "" : limit);
    if (row != policies.front()) policies.push_back(row);
  }
  const status made = make_bench_page(trace, policies, note, path);
  return made ? status{} : status{made.code(), fmt::format("--html {}: {}", path, made.message())};
}

/// The recording and the name to show. A number that is not the name of a file is a process ID.
struct loaded {
  bench::trace recorded;
  std::string shown;
};
/// The latest events that the process keeps (GPUMEM_HISTORY); nothing if it keeps none.
std::optional<bench::trace> history_of_process(unsigned pid) {
  const temporary_folder folder{"gpumem-why-"};
  const std::string path = fmt::format("{}/process-{}.csv", folder.path(), pid);
  if (folder.path().empty() || !write_dump_of_process({pid, path, "trace"})) return std::nullopt;
  auto read = bench::load_trace(path);
  return read && !read->ops.empty() ? std::optional{*std::move(read)} : std::nullopt;
}

result<loaded> load(const std::string& recording) {
  std::error_code ignored;
  const auto pid = whole_number<unsigned>(recording);
  if (!pid || fs::exists(recording, ignored)) {
    auto read = bench::load_trace(recording);
    if (!read) {
      return status{read.code(),
                    fmt::format("{}; expected a recording, which GPUMEM_TRACE=run.csv writes", read.why().message())};
    }
    return loaded{*std::move(read), recording};
  }
  const auto file = recording_of_process(*pid);
  auto read = file ? bench::load_trace(file->path) : result<bench::trace>{file.why()};
  if (!read || (read->ops.empty() && read->refused.empty())) {
    if (auto kept = history_of_process(*pid)) return loaded{*std::move(kept), fmt::format("process {}", *pid)};
  }
  if (!file) return file.why();
  if (!read) return status{read.code(), fmt::format("process {} ({}): {}", *pid, file->name, read.why().message())};
  read->name = fs::path{file->name}.stem().string();
  return loaded{*std::move(read), file->name};
}

result<std::uint64_t> capacity_of(const std::string& text) {
  if (text.empty()) return std::uint64_t{0};
  const result<std::uint64_t> bytes = parse_bytes(text, "--capacity");
  if (bytes && (*bytes == 0 || *bytes > 32 * tib)) {
    return status{errc::bad_setting, "--capacity: expected from 1 byte to 32TiB"};
  }
  return bytes;
}

}  // namespace

void add_why_command(CLI::App& app, why_options& options) {
  CLI::App* const why =
      app.add_subcommand("why", "why a recorded program ran out of memory, and what would have served it");
  why->footer(
      "A recording is made with GPUMEM_TRACE=F; PyTorch's snapshots and RMM's logs are read too. 3 is returned where\n"
      "no setting serves the refused request.\n"
      "Example: gpumem why run.csv.gz --html why.html");
  why->add_option("recording", options.recording, "a recording, or the PID of a program that records")
      ->type_name("FILE|PID");
  why->add_option("--capacity", options.capacity,
                  "memory that the program could take (24GiB), if the recording does not say")
      ->type_name("C");
  why->add_option("--html", options.html, "write the same as one page, with memory over time and the map of addresses")
      ->type_name("F");
  why->add_option("--json", options.json, "write the figures here as JSON; - is standard output")->type_name("F");
}

int why(const why_options& options) {
  if (options.recording.empty())
    return fail(2, "why: expected a recording (GPUMEM_TRACE) or the PID of a program that records");
  const auto capacity = capacity_of(options.capacity);
  if (!capacity) return fail(2, capacity.why().message());
  for (const auto& [option, path] : {std::pair{"--json", options.json}, std::pair{"--html", options.html}}) {
    if (path.empty() || (path == "-" && path == options.json)) continue;
    if (status writable = bench::check_output_file(path, option); !writable) return fail(2, writable.message());
  }
  const auto read = load(options.recording);
  if (!read) return fail(1, read.why().message());
  const bench::trace& recorded = read->recorded;
  const live_memory peak = live_after(recorded, ops_until_peak(recorded));
  std::optional<diagnosis> found;
  json serve = json::array();
  if (const bench::refused_request* const request = most_telling(recorded); request != nullptr) {
    if (status done = diagnose(recorded, *request, *capacity, found.emplace()); !done) return fail(1, done.message());
    serve = settings_that_serve(*found);
  }
  const std::string text = as_text(recorded, printable(read->shown, longest_path), peak, found, serve);
  if (options.json != "-") fmt::print("{}", visible(text));
  if (!options.json.empty()) {
    const json figures = as_json(recorded, peak, found, serve);
    const std::string all = figures.dump(2, ' ', false, json::error_handler_t::replace) + "\n";
    if (status written = bench::output_file{"--json", options.json}.write(all); !written) {
      return fail(1, written.message());
    }
  }
  if (!options.html.empty()) {
    const bench::trace& shown = found ? found->asked : recorded;
    if (status made = make_page(options.html, text, shown, found ? &*found : nullptr, serve); !made) {
      return fail(1, made.message());
    }
  }
  const bool served = !found || (!serve.empty() && !serve.front()["more_memory"].get<bool>());
  return served || found->capacity_bytes == 0 ? 0 : nothing_serves;
}

}  // namespace gpumem::cli
