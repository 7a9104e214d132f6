#include "advise_text.hpp"

#include <fmt/format.h>

#include <vector>

#include "device_figures.hpp"
#include "next_steps.hpp"
#include "text.hpp"
#include "units.hpp"

namespace gpumem::cli {
namespace {

/// The names of rows with the same figures, which share one line: `growth, hard_cap`.
std::string with_its_equals(const nlohmann::ordered_json& rows, const std::string& policy) {
  std::string names = policy;
  std::size_t equal_count = 0;
  for (const auto& row : rows) {
    if (row["same_as"] != policy) continue;
    ++equal_count;
    if (equal_count <= 2) names += fmt::format(", {}", row["policy"].get<std::string>());
  }
  if (equal_count > 2) names += fmt::format(" and {} more", equal_count - 2);
  return names;
}

}  // namespace

std::string advice_text(const nlohmann::ordered_json& all, const std::string& path) {
  const auto& rows = all["results"];
  const auto bytes = [](const nlohmann::ordered_json& value) { return format_bytes(value.get<std::uint64_t>()); };
  std::string text = fmt::format("{}: {} operations, {} live at the peak; ", all["trace"].get<std::string>(),
                                 all["ops"].get<std::uint64_t>(), bytes(all["peak_live_bytes"]));
  text += all["capacity_bytes"].is_null()
              ? "no limit. Simulated.\n\n"
              : fmt::format(
                    "at most {}{}. Simulated.\n\n", bytes(all["capacity_bytes"]),
                    all["capacity_by"] == "recording" ? ", in which the recorded program ran out (--capacity)" : "");
  if (const auto refused = all["refused"].get<std::uint64_t>(); refused != 0) {
    text.insert(text.size() - 1, fmt::format("Requests that were refused and not served later: {}; they are asked for "
                                             "again.\n",
                                             refused));
  }
  std::vector<std::vector<std::string>> lines{
      {"<policy", "<fits", "peak reserved", "utilization", "modelled ms", "pages moved", "<set"}};
  bool some = false;
  bool plan = false;
  for (const auto& row : rows) {
    if (!row["same_as"].is_null()) continue;
    const bool fits = row["fits"];
    some |= fits;
    plan |= fits && row["own_plan"].get<bool>();
    const std::string moved = fmt::format("{}", row["remapped_pages"].get<std::uint64_t>());
    lines.push_back(
        {with_its_equals(rows, row["policy"]), fits ? "yes" : "no", bytes(row["peak_reserved_bytes"]),
         fits ? fmt::format("{:.3f}", row["utilization"].get<double>()) : "-",
         fmt::format("{:.2f}", row["modelled_device_ms"].get<double>()), moved,
         fits ? row["set"].get<std::string>()
         : row["within_margin"].get<bool>()
             ? fmt::format("too close: runs differ by up to {} %; name a slack", margin_percent)
         : !row["next_refusal_after_ops"].is_null() && !row["refused_in_recording"].get<bool>()
             ? fmt::format("serves the recording, but not {} operations later if the program goes on as before",
                           row["next_refusal_after_ops"].get<std::uint64_t>())
         : row["oom_at_op"].is_null() && row["oom_without_lag"].get<bool>() && !row["refused_in_recording"].get<bool>()
             ? "out of memory where the device does not lag behind"
         : row["oom_at_op"].is_null() && !row["refused_in_recording"].get<bool>() && all["grows_for_ever"].get<bool>()
             ? "serves the recording, in which live memory grew throughout"
         : row["oom_at_op"].is_null()
             ? "ran out of memory in the recording"
             : fmt::format("out of memory at operation {} ({})", row["oom_at_op"].get<std::uint64_t>(),
                           row["oom_cause"].get<std::string>())});
  }
  text += table(lines) + "\n";
  if (all["grows_for_ever"].get<bool>()) return text + grows_for_ever_text + "\n";
  if (!some) {
    text += "Nothing fits.";
    if (!all["proof"].is_null()) text += fmt::format(" {}.", all["proof"].get<std::string>());
    return text + "\n";
  }
  text += fmt::format("Set: {}\n", rows.front()["set"].get<std::string>());
  for (const auto& row : rows) {
    if (!rows.front()["own_plan"].get<bool>()) break;
    if (row["own_plan"].get<bool>() || !row["fits"].get<bool>()) continue;
    text += fmt::format("Without a plan: {}\n", row["set"].get<std::string>());
    break;
  }
  if (plan) {
    const std::string name = all["trace"];
    text += fmt::format("planned follows a plan of this recording: gpumem plan {} -o {}.plan\n", path, name);
  }
  return text;
}

}  // namespace gpumem::cli
