// Each candidate is a set of GPUMEM_* variables. Both the replayed row and the line for the user are made from it.
#include "advise.hpp"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cctype>
#include <nlohmann/json.hpp>
#include <thread>
#include <tuple>
#include <utility>

#include "advise_text.hpp"
#include "assign_or_return.hpp"
#include "bits.hpp"
#include "fail.hpp"
#include "gpumem/policy.hpp"
#include "live_memory.hpp"
#include "log.hpp"
#include "measure.hpp"
#include "next_steps.hpp"
#include "own_plans.hpp"
#include "parallel.hpp"
#include "progress.hpp"
#include "text.hpp"
#include "units.hpp"

namespace gpumem::cli {
namespace {

constexpr std::chrono::milliseconds plan_time{10'000};
constexpr int nothing_fits = 3;

/// Pairs: GPUMEM_<first> = second. The policy comes first.
using variables = std::vector<std::pair<std::string, std::string>>;

struct candidate {
  variables set;
  bench::policy_row row;
  bench::compare_figures figures;
  bool refused = false;                            ///< refused a request in the recording with at least this memory
  std::optional<bench::policy_row> within_margin;  ///< the row with less memory, if runs of it vary
  bool too_close = false;                          ///< fits, but not within the margin
  bool oom_without_lag = false;                    ///< on a device whose work ends at once
  std::uint64_t served_ops = 0;                    ///< with lag and without, whichever serves fewer

  [[nodiscard]] bool fits() const { return !figures.outcome.oom && !refused && !too_close && !oom_without_lag; }
  /// The candidate in the form of `gpumem_bench --policy`.
  [[nodiscard]] std::string name() const {
    std::string text;
    for (const auto& [name, value] : set) {
      if (name == "LIMIT") continue;  // the limit is the same for all candidates
      std::string small = name;
      std::transform(small.begin(), small.end(), small.begin(),
                     [](unsigned char letter) { return std::tolower(letter); });
      text += text.empty() ? value : fmt::format(",{}={}", small, value);
    }
    return text;
  }
};

/// Every known policy and its declared variants, and the default policy with settings that change memory use or cost.
/// Unless `alike`, without policies that only require a setting, and without a setting that changes only the cost:
/// caches are emptied before a request is refused.
std::vector<variables> choices(const bench::trace& recorded, bool alike) {
  std::vector<variables> sets;
  for (const policy_entry& each : known_policies()) {
    if (!alike && (each.needs.pools || each.needs.limit)) continue;
    variables& set = sets.emplace_back(variables{{"POLICY", each.name}});
    if (each.needs.pools) set.emplace_back("POOLS", "100%");
    for (const std::string& variant : each.variants) sets.push_back({{"POLICY", each.name + ":" + variant}});
    const bool moves_pages = !each.needs.without_pages.empty();
    if (recorded.streams.size() > 1 && (moves_pages || each.name == settings{}.policy)) {
      sets.push_back({{"POLICY", each.name}, {"STREAM_REUSE", "host"}});
    }
  }
  if (alike) sets.push_back({{"POLICY", settings{}.policy}, {"THREAD_CACHE", "0"}});
  return sets;
}

/// Formats a limit of at most `bytes`, rounded to one decimal where possible: `32.2GiB`.
std::string limit_text(std::uint64_t bytes) {
  const std::string exact = exact_bytes(bytes);
  if (bytes < kib || (!exact.ends_with("KiB") && exact.ends_with("B"))) return exact;
  for (const auto& [unit, name] : {std::pair{tib, "TiB"}, {gib, "GiB"}, {mib, "MiB"}, {kib, "KiB"}}) {
    if (bytes < unit) continue;
    const auto tenths = static_cast<std::uint64_t>(static_cast<double>(bytes) * 10 / static_cast<double>(unit) + 0.5);
    for (const std::uint64_t count : {tenths, tenths - 1}) {
      const std::string text = count % 10 == 0 ? fmt::format("{}{}", count / 10, name)
                                               : fmt::format("{}.{}{}", count / 10, count % 10, name);
      if (const auto read = parse_bytes(text); read && *read <= bytes) return text;
    }
  }
  return exact;
}

/// Whether the recording was made with this setting, and ran out of memory there with `capacity` or more.
bool was_refused(const variables& set, const bench::trace& recorded, std::uint64_t capacity) {
  return !recorded.refusing_policy.empty() && set.front().second == recorded.refusing_policy && capacity != 0 &&
         capacity <= recorded.refused_within_bytes &&
         std::none_of(set.begin(), set.end(), [](const auto& each) { return each.first == "STREAM_REUSE"; });
}

/// Ignores other GPUMEM_* in the environment, so that the advice is complete.
result<std::vector<candidate>> candidates(const bench::trace& recorded, std::uint64_t capacity,
                                          const bench::own_plan* plan, bool alike) {
  std::vector<candidate> rows;
  for (variables& set : choices(recorded, alike)) {
    candidate& each = rows.emplace_back();
    const std::string limit = capacity != 0 ? limit_text(capacity) : "100%";
    const policy_entry entry = *find_policy(set.front().second);
    if (capacity != 0 || entry.needs.limit) set.emplace_back("LIMIT", limit);
    each.set = std::move(set);
    each.refused = was_refused(each.set, recorded, capacity);
    std::string text = each.name();
    if (each.set.back().first == "LIMIT") text += ",limit=" + limit;
    ASSIGN_OR_RETURN(auto row, bench::parse_policy_row(text, settings{}, ""));
    if (capacity != 0 && varies_between_runs(each.set.front().second)) {
      each.within_margin = row;
      each.within_margin->config.limit =
          byte_limit{.unit = byte_limit::kind::bytes,
                     .bytes = std::max(capacity - capacity * margin_percent / 100, std::min(capacity, 2 * mib))};
    }
    if (!bench::needs_own_plan(row)) {
      each.row = std::move(row);
    } else if (plan != nullptr) {
      each.row = plan->followed_by(std::move(row));
    } else {
      rows.pop_back();
    }
  }
  return rows;
}

/// Orders candidates, best first: those that fit before others. With a capacity, by time in device calls and for equal
/// times those without a plan first; without a capacity, by memory.
bool better(const candidate& lhs, const candidate& rhs, bool capped) {
  const auto key = [capped](const candidate& item) {
    // Candidates that do not fit are ordered by the operations that they completed, most first.
    const std::uint64_t left = item.fits() ? 0 : ~item.figures.outcome.ops;
    const std::uint64_t reserved = item.figures.peak_reserved_bytes;
    const std::uint64_t cost = item.figures.in_device_calls_ns.value_or(0);
    const bool by_cost = capped && item.fits();
    const std::uint64_t plan = item.row.own_plan ? 1 : 0;
    return by_cost ? std::tuple{!item.fits(), left, cost, plan, reserved}
                   : std::tuple{!item.fits(), left, reserved, cost, plan};
  };
  return key(lhs) < key(rhs);
}

/// Whether two rows differ in anything but their names.
bool same_figures(const candidate& lhs, const candidate& rhs) {
  const auto key = [](const candidate& item) {
    return std::tuple{item.figures.outcome.oom,
                      item.refused,
                      item.too_close,
                      item.oom_without_lag,
                      item.figures.outcome.ops,
                      item.figures.peak_reserved_bytes,
                      item.figures.in_device_calls_ns.value_or(0),
                      item.figures.pages ? item.figures.pages->remapped : 0,
                      item.row.own_plan};
  };
  return key(lhs) == key(rhs);
}

/// The variables as shell assignments in front of a command.
std::string assignments(const candidate& chosen, const std::string& trace) {
  std::string text;
  for (const auto& [name, value] : chosen.set) {
    text += fmt::format("{}GPUMEM_{}={}", text.empty() ? "" : " ", name, value);
  }
  if (chosen.row.own_plan) text += fmt::format(" GPUMEM_PLAN={}.plan", trace);
  return text;
}

nlohmann::ordered_json row_of(const candidate& chosen, const bench::trace& recorded, std::size_t rank,
                              std::uint64_t recorded_ops) {
  const bench::compare_figures& figures = chosen.figures;
  const bench::replay_outcome& outcome = figures.outcome;
  const bool serves_recording = (outcome.oom || chosen.oom_without_lag) && chosen.served_ops >= recorded_ops;
  return {
      {"rank", rank},
      {"policy", chosen.name()},
      {"fits", chosen.fits()},
      {"peak_reserved_bytes", figures.peak_reserved_bytes},
      {"utilization", figures.utilization()},
      {"modelled_device_ms", static_cast<double>(figures.in_device_calls_ns.value_or(0)) / 1e6},
      {"remapped_pages", figures.pages ? figures.pages->remapped : 0},
      {"refused_in_recording", chosen.refused},
      {"within_margin", chosen.too_close},
      {"oom_without_lag", chosen.oom_without_lag},
      {"next_refusal_after_ops", serves_recording ? nlohmann::ordered_json(chosen.served_ops - recorded_ops) : nullptr},
      {"oom", outcome.oom},
      {"oom_at_op", outcome.oom ? nlohmann::ordered_json(outcome.ops) : nullptr},
      {"oom_cause", outcome.oom ? nlohmann::ordered_json(to_string(outcome.cause)) : nullptr},
      {"own_plan", chosen.row.own_plan},
      {"set", assignments(chosen, recorded.name)}};
}

/// The recording up to its last refused request, if only frees follow, as in a program that the refusal ends. Empty
/// otherwise.
bench::trace ended_by_refusal(const bench::trace& recorded) {
  if (recorded.refused.empty()) return {};
  const bench::refused_request& last = recorded.refused.back();
  const bool goes_on =
      std::any_of(recorded.ops.begin() + static_cast<std::ptrdiff_t>(last.before_op), recorded.ops.end(),
                  [](const bench::trace_op& op) { return op.kind == bench::op_kind::allocate; });
  return goes_on ? bench::trace{} : until_refusal(recorded, last);
}

/// The proof that nothing can fit; null if there is none.
nlohmann::ordered_json proof(const bench::trace& recorded, std::uint64_t capacity) {
  if (capacity == 0 || recorded.peak_live_bytes <= capacity) return nullptr;
  std::uint64_t live = 0;
  for (std::size_t i = 0; i < recorded.ops.size(); ++i) {
    const std::uint64_t bytes = round_up(recorded.ops[i].bytes, block_granularity);
    live = recorded.ops[i].kind == bench::op_kind::allocate ? live + bytes : live - bytes;
    if (live > capacity) {
      return fmt::format("No allocator can: after operation {} {} bytes are live, and {} at the peak", i + 1, live,
                         recorded.peak_live_bytes);
    }
  }
  return nullptr;
}

}  // namespace

void add_advise_command(CLI::App& app, advise_options& options) {
  CLI::App* const advise = app.add_subcommand("advise", "ranks the policies and settings that fit a recorded program");
  advise->add_option("trace", options.trace, "a recording (GPUMEM_TRACE)")->type_name("TRACE");
  advise->add_option("--capacity", options.capacity, "memory for the program: 52GiB [default: no limit]")
      ->type_name("C");
  advise->add_flag("--json", options.json, "as JSON");
  advise->footer(
      "Exit status: 3 if nothing fits. Simulated: the recording is replayed under every policy.\n"
      "Example: gpumem advise run.csv.gz --capacity 24GiB");
}

bool varies_between_runs(const std::string& row) {
  if (row.find_first_of(":,") != std::string::npos) return false;
  const result<policy_entry> entry = find_policy(row);
  return entry && !entry->needs.without_pages.empty() && !entry->parameters.empty();
}

status advice_for(const bench::trace& recorded, std::uint64_t capacity, const bench::own_plan* plan,
                  nlohmann::ordered_json& advice, const advice_scope& scope) {
  bench::replay_setup setup;
  setup.device.capacity_bytes =
      round_up(std::max({setup.device.capacity_bytes, 2 * capacity, 2 * recorded.peak_live_bytes}), gib);
  setup.device.referee = false;
  setup.sample_peak = false;
  // The lag of the program's device decides where blocks lie, and the recording does not have it. So a setting fits a
  // program that ran out of memory only if it serves the program with and without lag.
  const bool ran_out = capacity != 0 && !recorded.refusing_policy.empty();
  bench::replay_setup without_lag = setup;
  without_lag.lag_ns = 0;
  ASSIGN_OR_RETURN(auto rows, candidates(recorded, capacity, plan, scope.alike));
  set_log_sink([](std::string_view) {});  // the table shows the refusals
  const unsigned jobs = std::max(1U, std::thread::hardware_concurrency());
  const status went = bench::run_parallel(rows.size(), jobs, [&](std::size_t index) -> status {
    auto figures = bench::measure_checked(recorded, rows[index].row, setup);
    if (!figures) return {figures.code(), rows[index].name() + ": " + figures.why().message()};
    candidate& each = rows[index];
    each.figures = *figures;
    each.served_ops = figures->outcome.ops;
    if (ran_out && (!figures->outcome.oom || each.served_ops >= scope.recorded_ops)) {
      auto sooner = bench::measure_checked(recorded, each.row, without_lag);
      if (!sooner) return {sooner.code(), each.name() + ": " + sooner.why().message()};
      each.oom_without_lag = sooner->outcome.oom;
      each.served_ops = std::min(each.served_ops, sooner->outcome.ops);
    }
    if (!each.within_margin || !each.fits()) return {};
    auto closer = bench::measure_checked(recorded, *each.within_margin, setup);
    if (!closer) return {closer.code(), each.name() + ": " + closer.why().message()};
    each.too_close = closer->outcome.oom;
    return {};
  });
  if (!went) return status{went.code(), fmt::format("{}: {}", recorded.path, went.message())};
  std::stable_sort(rows.begin(), rows.end(),
                   [&](const candidate& lhs, const candidate& rhs) { return better(lhs, rhs, capacity != 0); });
  advice = nlohmann::ordered_json::array();
  for (std::size_t i = 0; i < rows.size(); ++i) {
    nlohmann::ordered_json row = row_of(rows[i], recorded, i + 1, scope.recorded_ops);
    row["same_as"] = nullptr;
    for (std::size_t before = 0; before < i && row["same_as"].is_null(); ++before) {
      if (same_figures(rows[before], rows[i])) row["same_as"] = rows[before].name();
    }
    advice.push_back(std::move(row));
  }
  return {};
}

int advise(const advise_options& options) {
  if (options.trace.empty()) return fail(2, "advise: no TRACE; expected a recording (GPUMEM_TRACE)");
  std::uint64_t capacity = 0;
  if (!options.capacity.empty()) {
    const result<std::uint64_t> bytes = parse_bytes(options.capacity, "--capacity");
    if (!bytes) return fail(2, bytes.why().message());
    if (*bytes == 0 || *bytes > 32 * tib) return fail(2, "--capacity: expected from 1 byte to 32TiB");
    capacity = *bytes;
  }
  const result<bench::trace> recorded = bench::load_trace(options.trace);
  if (!recorded) return fail(1, recorded.why().message());
  const bench::trace t = bench::with_refused(*recorded);
  const bool as_recorded = capacity == 0 && !t.refusing_policy.empty();
  if (as_recorded) capacity = t.refused_within_bytes;
  const auto plan = [&] {
    const bench::timed_progress line{"planning " + options.trace, std::chrono::duration<double>(plan_time).count()};
    return bench::own_plan::make(t, plan_time);
  }();
  if (!plan) return fail(1, plan.why().message());
  const bench::trace asked = capacity != 0 ? ended_by_refusal(*recorded) : bench::trace{};
  const bool grows = !asked.ops.empty() && grows_for_ever(asked, capacity);
  const bool goes_on = !asked.ops.empty() && !grows;
  nlohmann::ordered_json rows;
  const bench::trace replayed = goes_on ? with_next_steps(asked, capacity) : t;
  const std::uint64_t recorded_ops = goes_on ? asked.ops.size() : UINT64_MAX;
  if (status done = advice_for(replayed, capacity, &*plan, rows, {.recorded_ops = recorded_ops}); !done) {
    return fail(1, done.message());
  }
  // The replay limits the pool alone. A limit on the whole process would leave the pool less memory.
  for (auto& row : rows) {
    if (as_recorded) row["set"] = row["set"].get<std::string>() + " GPUMEM_LIMIT_SCOPE=pool";
    if (grows) row["fits"] = false;  // a setting only delays the end
  }
  nlohmann::ordered_json all{{"schema", 1},
                             {"simulated", true},
                             {"trace", t.name},
                             {"ops", t.ops.size()},
                             {"peak_live_bytes", t.peak_live_bytes},
                             {"refused", (t.ops.size() - recorded->ops.size()) / 2},
                             {"capacity_bytes", nullptr},
                             {"capacity_by", nullptr},
                             {"proof", proof(t, capacity)},
                             {"grows_for_ever", grows},
                             {"results", std::move(rows)}};
  if (capacity != 0) {
    all["capacity_bytes"] = capacity;
    all["capacity_by"] = as_recorded ? "recording" : "option";
  }
  const std::string text = options.json ? all.dump(2, ' ', false, nlohmann::json::error_handler_t::replace) + "\n"
                                        : advice_text(all, options.trace);
  fmt::print("{}", visible(text));
  const auto& ranked = all["results"];
  return ranked.empty() || !ranked.front()["fits"].get<bool>() ? nothing_fits : 0;
}

}  // namespace gpumem::cli
