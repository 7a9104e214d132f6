// Replays up to the refused request and through the steps that the program would have made next.
#include "diagnosis.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <optional>

#include "advise.hpp"
#include "bits.hpp"
#include "next_steps.hpp"
#include "own_plans.hpp"
#include "units.hpp"

namespace gpumem::cli {
namespace {

using json = nlohmann::ordered_json;

constexpr std::chrono::milliseconds plan_time_limit{1000};
/// Above it, already the first placement takes longer than `plan_time_limit`.
constexpr std::uint64_t most_placement_work = 20'000'000;
constexpr std::size_t shown_settings = 3;

/// Whether the row serves the request, but not the next steps.
bool only_serves_request(const json& row) {
  return !row["next_refusal_after_ops"].is_null() && !row["refused_in_recording"].get<bool>() &&
         !row["within_margin"].get<bool>();
}

std::string cause_of(const diagnosis& diagnosed) {
  if (diagnosed.capacity_bytes == 0) return "unknown";
  if (diagnosed.needed_bytes() > diagnosed.capacity_bytes) return "full";
  for (const json& row : diagnosed.within) {
    if (row["policy"] != diagnosed.asked.refusing_policy) continue;
    // Replays have no pending work. If the same policy serves the request in both, pending work held back the memory.
    const bool serves = !row["oom"].get<bool>() && !row["oom_without_lag"].get<bool>();
    return serves || !row["next_refusal_after_ops"].is_null() ? "pending_work" : "fragmentation";
  }
  return "fragmentation";
}

/// The least number of pairs of simultaneously live blocks that a plan compares.
std::uint64_t placement_work(const bench::trace& recorded) {
  std::uint64_t live = 0;
  std::uint64_t pairs = 0;
  for (const bench::trace_op& op : recorded.ops) {
    live = op.kind == bench::op_kind::allocate ? live + 1 : live - 1;
    if (op.kind == bench::op_kind::allocate) pairs += live;
  }
  return pairs;
}

}  // namespace

std::uint64_t diagnosis::needed_bytes() const { return held.bytes + round_up(request.bytes, std::uint64_t{512}); }

const bench::refused_request* most_telling(const bench::trace& recorded) {
  for (auto each = recorded.refused.rbegin(); each != recorded.refused.rend(); ++each) {
    std::uint64_t next = each->before_op;
    while (next < recorded.ops.size() && recorded.ops[next].kind == bench::op_kind::free) ++next;
    if (next == recorded.ops.size() || recorded.ops[next].bytes != each->bytes) return &*each;
  }
  return recorded.refused.empty() ? nullptr : &recorded.refused.back();
}

std::string explanation(const diagnosis& diagnosed) {
  const std::string sum = fmt::format("{} live and {} asked", format_bytes(diagnosed.held.bytes),
                                      format_bytes(round_up(diagnosed.request.bytes, std::uint64_t{512})));
  const std::string capacity = format_bytes(diagnosed.capacity_bytes);
  if (diagnosed.cause == "full") {
    return fmt::format(
        "full: {} are more than the {} that the program could have (its limit, or what others left of the "
        "card)",
        sum, capacity);
  }
  if (diagnosed.cause == "fragmentation") {
    return fmt::format("fragmentation: {} fit into {}, but not in one piece", sum, capacity);
  }
  if (diagnosed.cause == "pending_work") {
    return fmt::format(
        "pending work: {} fit into {}, and the replay serves the request; in the program, freed memory "
        "waited for work of its streams",
        sum, capacity);
  }
  return fmt::format("unknown: {}; the recording does not say how much memory there was, --capacity does", sum);
}

status diagnose(const bench::trace& recorded, const bench::refused_request& request, std::uint64_t capacity,
                diagnosis& diagnosed) {
  diagnosed.request = request;
  diagnosed.asked = until_refusal(recorded, request);
  diagnosed.held = live_after(recorded, request.before_op);
  diagnosed.capacity_bytes = capacity != 0 ? capacity : recorded.refused_within_bytes;
  const std::uint64_t within = diagnosed.capacity_bytes;
  diagnosed.grows_for_ever = within != 0 && grows_for_ever(diagnosed.asked, within);
  if (diagnosed.grows_for_ever) {
    diagnosed.cause = diagnosed.needed_bytes() > within ? "full" : "fragmentation";
    return {};
  }
  std::optional<bench::own_plan> plan;
  if (placement_work(diagnosed.asked) <= most_placement_work) {
    auto made = bench::own_plan::make(diagnosed.asked, plan_time_limit);
    if (!made) return made.why();
    plan = *std::move(made);
  }
  const bench::own_plan* const followed = plan ? &*plan : nullptr;
  if (within != 0 && diagnosed.needed_bytes() <= within) {
    const bench::trace going = with_next_steps(diagnosed.asked, within);
    if (status done = advice_for(going, within, followed, diagnosed.within,
                                 {.recorded_ops = diagnosed.asked.ops.size(), .alike = false});
        !done)
      return done;
  }
  diagnosed.cause = cause_of(diagnosed);
  const bool served = std::any_of(diagnosed.within.begin(), diagnosed.within.end(),
                                  [](const json& row) { return row["fits"].get<bool>() || only_serves_request(row); });
  return served ? status{} : advice_for(diagnosed.asked, 0, followed, diagnosed.beyond, {.alike = false});
}

json settings_that_serve(const diagnosis& diagnosed) {
  json rows = json::array();
  if (diagnosed.grows_for_ever) return rows;
  const bool capped = diagnosed.beyond.empty();
  const bool any_fits = !capped || std::any_of(diagnosed.within.begin(), diagnosed.within.end(),
                                               [](const json& row) { return row["fits"].get<bool>(); });
  for (const json& row : capped ? diagnosed.within : diagnosed.beyond) {
    if (rows.size() == shown_settings) break;
    const bool named = any_fits ? row["fits"].get<bool>() : only_serves_request(row);
    if (!named || !row["same_as"].is_null()) continue;
    const auto reserved = row["peak_reserved_bytes"].get<std::uint64_t>();
    std::string set = row["set"];
    if (const std::size_t limit = set.find(" GPUMEM_LIMIT="); !capped) {
      // Adds a tenth, because other runs order their requests differently.
      const std::uint64_t needed = round_up(reserved + reserved / 10, mib);
      set = fmt::format("{} GPUMEM_LIMIT={}", set.substr(0, limit), exact_bytes(needed));
    }
    if (capped && !diagnosed.asked.refusing_policy.empty()) set += " GPUMEM_LIMIT_SCOPE=pool";
    rows.push_back({{"policy", row["policy"]},
                    {"set", set},
                    {"peak_reserved_bytes", reserved},
                    {"more_memory", !capped},
                    {"own_plan", row["own_plan"]},
                    {"next_refusal_after_ops", row["next_refusal_after_ops"]}});
  }
  // A plan holds for one recording; a setting alone is easier to try.
  std::stable_sort(rows.begin(), rows.end(), [](const json& lhs, const json& rhs) {
    return !lhs["own_plan"].get<bool>() && rhs["own_plan"].get<bool>();
  });
  return rows;
}

}  // namespace gpumem::cli
