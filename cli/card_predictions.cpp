// The row `native` is the framework's own allocator. If the card holds the peak that the run reserved on a card with
// ample memory, the row shows that peak. On a smaller card the allocator would release cached segments, so the row
// shows a replay of the policy `caching`, which works like PyTorch's allocator.
#include "card_predictions.hpp"

#include <algorithm>
#include <chrono>

#include "advise.hpp"
#include "own_plans.hpp"

namespace gpumem::cli {
namespace {

using json = nlohmann::ordered_json;

constexpr std::uint64_t one_segment = std::uint64_t{2} << 20;  // no policy takes a smaller limit
constexpr std::chrono::milliseconds plan_time{10'000};

json native_row(const recording& recorded, std::uint64_t budget, const json& advice) {
  if (recorded.native_reserved_bytes <= budget) {
    return {{"fits", true}, {"peak_reserved_bytes", recorded.native_reserved_bytes}, {"by", "measured"}};
  }
  const auto model = std::find_if(advice.begin(), advice.end(),
                                  [](const json& row) { return row["policy"].get<std::string>() == "caching"; });
  const bool fits = model != advice.end() && (*model)["fits"].get<bool>();
  return {{"fits", fits},
          {"peak_reserved_bytes",
           fits ? (*model)["peak_reserved_bytes"].get<std::uint64_t>() : recorded.native_reserved_bytes},
          {"by", "replay of caching"}};
}

/// Fills `advice` with the rows of `advise` within `rest` bytes, and adds `recorded.outside_bytes` to their peaks.
status advice_within(const recording& recorded, std::uint64_t rest, const bench::own_plan& plan, json& advice) {
  const bool any = rest >= one_segment;  // otherwise a replay with the least limit only names the rows
  if (status done = advice_for(recorded.trace, std::max(rest, one_segment), &plan, advice); !done) return done;
  for (json& row : advice) {
    if (!any) row["fits"] = false;
    row["peak_reserved_bytes"] = row["peak_reserved_bytes"].get<std::uint64_t>() + recorded.outside_bytes;
  }
  return {};
}

/// The variables to set for a row. PyTorch uses gpumem if GPUMEM_TORCH is set. Other programs are preloaded: there a
/// limit covers the whole process by default, so GPUMEM_LIMIT_SCOPE=pool makes it a limit of the pool, as replayed.
std::string settings_of(const recording& recorded, const json& row) {
  const auto set = row["set"].get<std::string>();
  return recorded.by_torch ? "GPUMEM_TORCH=1 " + set : set + " GPUMEM_LIMIT_SCOPE=pool";
}

}  // namespace

status predict_all(const recording& recorded, const std::vector<capacity>& capacities, std::uint64_t context_bytes,
                   json& predictions, const served_run& measure) {
  const auto plan = bench::own_plan::make(recorded.trace, plan_time);
  if (!plan) return plan.why();
  predictions = json::array();
  for (const capacity& each : capacities) {
    const std::uint64_t budget = rest_of(each, context_bytes);
    json advice;
    if (status done = advice_within(recorded, rest_of(each, context_bytes + recorded.outside_bytes), *plan, advice);
        !done) {
      return done;
    }
    const auto add = [&](const std::string& policy, const json& row, const std::string& settings) {
      json line{{"capacity", each.name},
                {"capacity_bytes", each.bytes},
                {"policy", policy},
                {"fits", row["fits"]},
                {"peak_reserved_bytes", row["peak_reserved_bytes"]},
                {"settings", settings}};
      if (row.contains("by")) line["by"] = row["by"];
      if (measure && row["fits"].get<bool>() && varies_between_runs(policy)) {
        if (const std::optional<measured_peak> measured = measure(each, settings)) {
          line["fits"] = !measured->ran_out;
          line["peak_reserved_bytes"] = measured->peak_bytes;
          line["by"] = "measured";
        }
      }
      predictions.push_back(std::move(line));
    };
    add("native", native_row(recorded, budget, advice), "");
    for (const json& row : advice) add(row["policy"], row, settings_of(recorded, row));
  }
  return {};
}

}  // namespace gpumem::cli
