/// `latency`'s figures as tables for people and as JSON for programs.
#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "latency.hpp"

namespace gpumem::bench {
namespace {

std::string times_table(const std::vector<latency_row>& rows, std::size_t width) {
  std::string text = fmt::format("{:<{}}{:<28}{:>8}{:>12}{:>12}{:>12}{:>15}\n", "allocator", width, "case", "threads",
                                 "ns", "least", "most", "device's part");
  for (const latency_row& r : rows) {
    if (r.tail) continue;
    text += fmt::format("{:<{}}{:<28}{:>8}", r.allocator, width, r.name, r.threads);
    text += r.oom ? "  out of memory\n"
                  : fmt::format("{:>12.1f}{:>12.1f}{:>12.1f}{:>15}\n", r.median_ns, r.least_ns, r.most_ns,
                                r.simulated_share_ns ? fmt::format("{:.1f}", *r.simulated_share_ns) : "-");
  }
  return text;
}

std::string tails_table(const std::vector<latency_row>& rows, std::size_t width) {
  std::string text;
  for (const latency_row& r : rows) {
    if (!r.tail) continue;
    const tail_times& t = *r.tail;
    if (text.empty()) {
      text = fmt::format("\n{:<{}}{:>10}{:>10}{:>10}{:>10}{:>12}{:>12}{:>12}{:>12}{:>24}{:>12}\n", "worst, us", width,
                         "p50", "p99", "p99.9", "p99.999", "max", "operations", "on device", "preempted",
                         "of medians: p99.999", "max");
    }
    text += fmt::format("{:<{}}{:>10.3f}{:>10.3f}{:>10.3f}{:>10.3f}{:>12.3f}{:>12}{:>12}{:>12}{:>24.3f}{:>12.3f}\n",
                        r.allocator, width, t.p50_us, t.p99_us, t.p99_9_us, t.p99_999_us, t.max_us, t.ops,
                        t.device_ops ? fmt::format("{}", *t.device_ops) : "-", t.preemptions, t.p99_999_of_medians_us,
                        t.max_of_medians_us);
  }
  return text;
}

std::string ratios_table(const std::vector<latency_ratio>& ratios, std::size_t width) {
  if (ratios.empty()) return "";
  std::string text = fmt::format("\n{:<{}}{:<42}{:>10}{:>10}{:>10}  {:<9}{}\n", "ratios of", width, "", "measured",
                                 "of least", "own code", "bound", "from");
  const auto shown = [](std::optional<double> ratio) { return ratio ? fmt::format("{:.2f}", *ratio) : "-"; };
  for (const latency_ratio& r : ratios) {
    text += fmt::format("{:<{}}{:<42}{:>10.2f}{:>10}{:>10}  {:<9}{}\n", r.allocator, width, r.name, r.value,
                        shown(r.of_least), shown(r.own_code), r.bound.empty() ? "-" : r.bound, r.medians);
  }
  return text;
}

nlohmann::ordered_json json_of(const tail_times& tail) {
  using json = nlohmann::ordered_json;
  return {{"p50_us", tail.p50_us},
          {"p99_us", tail.p99_us},
          {"p99_9_us", tail.p99_9_us},
          {"p99_999_us", tail.p99_999_us},
          {"max_us", tail.max_us},
          {"p99_999_of_medians_us", tail.p99_999_of_medians_us},
          {"max_of_medians_us", tail.max_of_medians_us},
          {"ops", tail.ops},
          {"device_ops", tail.device_ops ? json(*tail.device_ops) : json(nullptr)},
          {"preemptions", tail.preemptions}};
}

nlohmann::ordered_json json_of(const latency_row& row) {
  using json = nlohmann::ordered_json;
  const auto where = [&row](bool present, double value) { return present && !row.oom ? json(value) : json(nullptr); };
  return {{"allocator", row.allocator},
          {"case", row.name},
          {"threads", row.threads},
          {"ns_per_pair", where(row.iteration != iteration_kind::operation && !row.tail, row.median_ns)},
          {"ns_per_op", where(row.iteration == iteration_kind::operation, row.median_ns)},
          {"least_ns", where(!row.tail, row.least_ns)},
          {"most_ns", where(!row.tail, row.most_ns)},
          {"oom", row.oom},
          {"double_share_ns", row.simulated_share_ns ? json(*row.simulated_share_ns) : json(nullptr)},
          {"tail", row.tail ? json_of(*row.tail) : json(nullptr)}};
}

}  // namespace

std::string latency_table(const std::vector<latency_row>& rows, const replay_setup& setup) {
  std::size_t width = 12;
  for (const latency_row& r : rows) width = std::max(width, r.allocator.size() + 2);
  const bool real = setup.cuda && !setup.cuda->info.simulated;
  return times_table(rows, width) + tails_table(rows, width) + ratios_table(latency_ratios(rows), width) +
         fmt::format(
             "\nMedians of {} rounds ({} of the longer cases); a ratio is the median of the ratios in each round, "
             "of whole times; 'own code' is without the device's part. Times are ns of wall-clock time a pair, of all "
             "threads together; a replay's are an operation, as the mean over the "
             "trace{}.\n",
             latency_repetitions, latency_long_repetitions,
             real ? ", on " + setup.device.name
                  : ". Host time only: the device is simulated; the column of the device's part has the time of the "
                    "simulated device or the driver double");
}

std::string latency_json(const std::vector<latency_row>& rows, const replay_setup& setup) {
  using json = nlohmann::ordered_json;
  json all{{"schema", 1},
           {"command", "latency"},
           {"simulated", !setup.cuda || setup.cuda->info.simulated},
           {"device", {{"kind", setup.cuda ? "cuda" : "sim"}, {"name", setup.device.name}}},
           {"results", json::array()},
           {"ratios", json::array()}};
  for (const latency_row& r : rows) all["results"].push_back(json_of(r));
  for (const latency_ratio& r : latency_ratios(rows)) {
    all["ratios"].push_back({{"name", r.name},
                             {"value", r.value},
                             {"bound", r.bound.empty() ? nlohmann::json{} : nlohmann::json(r.bound)},
                             {"of", r.allocator},
                             {"from", r.medians},
                             {"of_least", r.of_least ? json(*r.of_least) : json(nullptr)},
                             {"own_code", r.own_code ? json(*r.own_code) : json(nullptr)}});
  }
  return all.dump(2, ' ', false, json::error_handler_t::replace) + "\n";
}

}  // namespace gpumem::bench
