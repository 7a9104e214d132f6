/// Claims about growth on demand, and about returning memory.
#include <fmt/format.h>

#include <algorithm>

#include "claim.hpp"
#include "gpumem/policy.hpp"
#include "workload.hpp"

namespace gpumem::bench {
namespace {

constexpr std::uint64_t epochs = 8;

std::vector<history_point> memory_over(const trace& recorded, const policy_row& row, const claim_setup& setup) {
  if (setup.replay.cuda) return need(measure_history_on_cuda(recorded, row, setup.replay)).points;
  return need(measure_history(recorded, row, setup.replay))->points;
}

findings starts_small(const claim_setup& setup) {
  const auto t = need(make_workload("epochs,ops=80000,peak=4GiB", setup.replay.seed));
  const auto row = plain_row("growth:segments");
  const std::vector<history_point> points = memory_over(t, row, setup);
  findings found;
  std::uint64_t before = 0;
  std::size_t grown = 0;
  const std::uint64_t first = std::find_if(points.begin(), points.end(), [](const auto& point) {
                                return point.reserved_bytes > 0;
                              })->reserved_bytes;
  for (std::uint64_t epoch = 1; epoch <= epochs; ++epoch) {
    const std::uint64_t end = t.ops.size() * epoch / epochs;
    const auto last =
        std::prev(std::find_if(points.begin(), points.end(), [&](const auto& point) { return point.op >= end; }));
    std::uint64_t least = UINT64_MAX;
    for (const history_point& p : points) {
      if (p.op * epochs / t.ops.size() == epoch - 1 && p.reserved_bytes > 0) least = std::min(least, p.reserved_bytes);
    }
    grown += last->reserved_bytes > before ? 1U : 0U;
    found.figures.push_back({{"epoch", epoch},
                             {"first_bytes", first},
                             {"least_reserved_bytes", least},
                             {"reserved_at_end_bytes", last->reserved_bytes},
                             {"live_at_end_bytes", last->live_bytes}});
    before = last->reserved_bytes;
  }
  bool shrank = false;
  for (std::size_t i = 1; i < points.size(); ++i) shrank |= points[i].reserved_bytes < points[i - 1].reserved_bytes;
  const double share = static_cast<double>(first) / static_cast<double>(before);
  found.measured = fmt::format(
      "The first take is {} ({:.1f} % of the last state, {}); reserved grew in {} of {} epochs and {}.",
      format_bytes(first), share * 100, format_bytes(before), grown, epochs, shrank ? "shrank" : "never shrank");
  found.outcome = verdict_of((share < 0.1 ? 1U : 0U) + (grown >= epochs / 2 ? 1U : 0U) + (shrank ? 0U : 1U), 3);
  return found;
}

struct way {
  std::string name;
  std::string row;
  std::size_t trim_every = 0;
};

struct cost_of_way {
  std::uint64_t peak_reserved = 0;
  double mean_reserved = 0;
  std::uint64_t device_ns = 0;
  bool oom = false;
};

cost_of_way cost(const trace& recorded, const way& how, const replay_setup& setup) {
  const auto row = plain_row(how.row);
  sim_config config = setup.device;
  config.referee = false;
  sim_device gpu{config};
  memory_log log;
  logged_device logged{gpu, log};
  device* const devices[]{&logged};
  auto memory = need(allocator::open(devices, row.config));
  replay_plan plan = plan_for(recorded, row, setup);
  plan.log = &log;
  plan.trim_every = how.trim_every;
  const auto outcome = need(replay_checked(plan, *memory, gpu));
  cost_of_way way_cost{.device_ns = gpu.in_calls_ns(), .oom = outcome.oom};
  std::uint64_t reserved = 0;
  auto event = log.events.begin();
  double sum = 0;
  for (std::uint64_t op = 0; op < outcome.ops; ++op) {
    for (; event != log.events.end() && event->op == op; ++event) {
      if (event->change == memory_change::taken || event->change == memory_change::mapped) reserved += event->bytes;
      if (event->change == memory_change::given_back) reserved -= event->bytes;
      way_cost.peak_reserved = std::max(way_cost.peak_reserved, reserved);
    }
    sum += static_cast<double>(reserved);
  }
  way_cost.mean_reserved = sum / static_cast<double>(std::max<std::uint64_t>(outcome.ops, 1));
  return way_cost;
}

/// Whether `peak` is more than 1 % above `than`.
bool worse(std::uint64_t peak, std::uint64_t than) { return peak > than + than / 100; }

findings releasing(const claim_setup& setup) {
  auto traces = all_workloads(setup);
  std::vector<way> ways{{"growth:segments, never gives back", "growth:segments", 0},
                        {"growth:segments, trim every 1000 operations", "growth:segments", 1000},
                        {"caching", "caching", 0},
                        {"caching, trim every 1000 operations", "caching", 1000}};
  if (find_policy("expandable")) ways.push_back({"expandable", "expandable", 0});
  findings found;
  std::size_t cases = 0;
  std::size_t cases_worse = 0;
  double saved = 0;
  double slower = 0;
  for (const trace& t : traces) {
    std::vector<cost_of_way> costs;
    for (const way& each : ways) {
      const cost_of_way& got = costs.emplace_back(cost(t, each, setup.replay));
      found.figures.push_back({{"workload", t.name},
                               {"way", each.name},
                               {"peak_reserved_bytes", got.peak_reserved},
                               {"mean_reserved_bytes", static_cast<std::uint64_t>(got.mean_reserved)},
                               {"device_us", got.device_ns / 1000}});
    }
    for (const std::size_t kept : {std::size_t{0}, std::size_t{2}}) {  // the same policy with and without trim
      ++cases;
      cases_worse += worse(costs[kept + 1].peak_reserved, costs[kept].peak_reserved) ? 1U : 0U;
      saved += 1 - costs[kept + 1].mean_reserved / costs[kept].mean_reserved;
      slower += static_cast<double>(costs[kept + 1].device_ns) / static_cast<double>(costs[kept].device_ns);
    }
  }
  const auto count = static_cast<double>(cases);
  found.measured = fmt::format(
      "Giving idle segments back raised the peak of reserved by more than 1 % in {} of {} cases. It lowered what was "
      "reserved on average by {:.1f} % and multiplied the time in device calls by {:.1f}.",
      cases_worse, cases, saved * 100 / count, slower / count);
  found.outcome = verdict_of(cases_worse, cases);
  return found;
}

}  // namespace

std::vector<claim> growth_claims() {
  return {
      {.id = "growth-starts-small-and-never-shrinks",
       .statement = "With growth allowed, a program starts with little memory, gets more as it needs more, and gives "
                    "nothing back.",
       .source =
           "TensorFlow, [guide \"Use a GPU\"](https://www.tensorflow.org/guide/gpu), "
           "[set_memory_growth](https://www.tensorflow.org/api_docs/python/tf/config/experimental/set_memory_growth); "
           "its issues [1578](https://github.com/tensorflow/tensorflow/issues/1578) and "
           "[36501](https://github.com/tensorflow/tensorflow/issues/36501).",
       .experiment =
           "Eight epochs of training with ever longer sequences and an evaluation after each (workload epochs, 80,000 "
           "operations, 4 GiB) under growth:segments, which is TensorFlow's own form. It holds where the first take is "
           "below a tenth of the last state, reserved grows in at least half of the epochs, and never shrinks.",
       .expected = "The first and the last; steps that double come ever more rarely.",
       .run = starts_small,
       .on_card = "The same operations on the card, through its driver."},
      {.id = "releasing-fragments-worse",
       .statement = "Memory is not given back, since that would lead to even worse fragmentation.",
       .source = "TensorFlow 1.x, guide \"Using GPUs\", "
                 "[allow_growth](https://github.com/tensorflow/tensorflow/blob/v1.15.0/tensorflow/core/protobuf/"
                 "config.proto): we do not release memory, since that can lead to even worse memory fragmentation.",
       .experiment =
           "Every workload under growth:segments and under caching, without a trim and with one every 1000 operations, "
           "and under expandable where this build has it: peak and mean of reserved, time in device calls. It holds "
           "where trim "
           "raises the peak by more than 1 % in every case.",
       .expected = "Depends: what is given back is taken again, at a place that may fit better or worse.",
       .run = releasing}};
}

}  // namespace gpumem::bench
