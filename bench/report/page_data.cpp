/// The figures of `compare` for the page: the rows of the JSON, and each row's history in compact arrays.
#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "gpumem/request.hpp"
#include "gpumem/settings.hpp"
#include "report.hpp"

namespace gpumem::bench {
namespace {

using json = nlohmann::ordered_json;

/// Live and reserved are given in units of 512 bytes; on the simulated device they are multiples of it.
json history_data(const history& shown) {
  json op = json::array();
  json live = json::array();
  json reserved = json::array();
  for (const history_point& each : shown.points) {
    op.push_back(each.op);
    live.push_back(each.live_bytes / block_granularity);
    reserved.push_back(each.reserved_bytes / block_granularity);
  }
  json frames = json::array();
  for (const map_frame& each : shown.frames) {
    frames.push_back({{"op", each.op},
                      {"live", each.live_bytes},
                      {"requested", each.requested_bytes},
                      {"reserved", each.reserved_bytes},
                      {"holes", each.holes},
                      {"largest", each.largest_hole_bytes},
                      {"cells", run_lengths(each.cells)}});
  }
  return {{"ops", shown.ops},
          {"op", std::move(op)},
          {"live", std::move(live)},
          {"reserved", std::move(reserved)},
          {"map",
           {{"cell_bytes", shown.cell_bytes},
            {"never_used_bytes", shown.never_used_bytes},
            {"pieces", shown.piece_cells},
            {"frames", std::move(frames)}}}};
}

std::string subtitle(const replay_setup& setup) {
  const sim_config& device = setup.device;
  const std::string figures =
      fmt::format("{}, {}, compute capability {}.{}", device.name, format_bytes(device.capacity_bytes),
                  device.compute_major, device.compute_minor);
  const bool measured = setup.cuda && !setup.cuda->info.simulated;
  return fmt::format(
             "{}: {}. Work ends {:g} ms after the host enqueues it, {:g} % of the blocks are used on a second stream, "
             "seed {}.",
             measured ? "Figures measured on" : "All simulated, except host time, on", figures,
             static_cast<double>(setup.lag_ns) / 1e6, setup.shared_use * 100, setup.seed) +
         (measured ? " Charts and maps are of a simulated replay." : "");
}

}  // namespace

std::string compare_page_data(const std::vector<compare_result>& results, const replay_setup& setup,
                              const std::string& note) {
  json rows = json::parse(compare_json(results, setup))["results"];
  for (std::size_t i = 0; i < results.size(); ++i) {
    json& row = rows[i];
    const compare_result& each = results[i];
    row.erase("over_time");
    std::uint64_t calls = 0;
    for (const auto& [name, count] : row["device_calls"].items()) {
      if (count.is_number() &&
          (name == "alloc" || name == "free" || name == "map" || name == "unmap" || name == "synchronize")) {
        calls += count.get<std::uint64_t>();
      }
    }
    row["calls"] = each.figures.calls ? json(calls) : json(nullptr);
    row["oom"] = each.figures.outcome.oom ? fmt::format("{} at operation {}", to_string(each.figures.outcome.cause),
                                                        each.figures.outcome.ops)
                                          : std::string{};
    if (!each.failed.empty()) row["oom"] = "failed: " + each.failed;
    if (!each.over_time) continue;
    row["capacity_bytes"] = each.over_time->capacity_bytes;
    row["history"] = history_data(*each.over_time);
  }
  const json data{{"title", note.empty() ? "gpumem: every policy, measured" : "gpumem: why memory ran out"},
                  {"subtitle", subtitle(setup)},
                  {"note", note},
                  {"made_by", "gpumem_bench compare " GPUMEM_VERSION_TEXT},
                  {"rows", std::move(rows)}};
  return data.dump(-1, ' ', false, json::error_handler_t::replace);
}

}  // namespace gpumem::bench
