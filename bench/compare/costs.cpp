#include "costs.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <nlohmann/json.hpp>

#include "assign_or_return.hpp"
#include "bits.hpp"
#include "gpumem/cuda_device.hpp"

namespace gpumem::bench {
namespace {

constexpr std::uint64_t page = 2 * mib;
constexpr unsigned rounds = 20;         // for calls with a size
constexpr unsigned rounds_small = 200;  // for calls without a size
constexpr std::uint64_t most_pinned = 64 * mib;

/// Collects the times of one call at one size.
class stopwatch {
 public:
  explicit stopwatch(const std::function<std::uint64_t()>& now_ns) : now_ns_{now_ns} {}

  /// Times the call and returns its status. Only successful calls count.
  template <typename Call>
  auto time(device_call call, std::uint64_t bytes, Call&& make) {
    const std::uint64_t begin = now_ns_();
    auto outcome = make();
    const std::uint64_t end = now_ns_();
    if (outcome.ok()) samples_for(call, bytes).push_back(static_cast<double>(end - begin));
    return outcome;
  }

  [[nodiscard]] std::vector<call_time> times() {
    std::vector<call_time> measured;
    for (sample_set& s : sets_) {
      std::sort(s.ns.begin(), s.ns.end());
      measured.push_back({.call = s.call,
                          .bytes = s.bytes,
                          .median_ns = s.ns[s.ns.size() / 2],
                          .p90_ns = s.ns[s.ns.size() * 9 / 10],
                          .times = static_cast<unsigned>(s.ns.size())});
    }
    std::stable_sort(measured.begin(), measured.end(),
                     [](const call_time& lhs, const call_time& rhs) { return lhs.call < rhs.call; });
    return measured;
  }

 private:
  struct sample_set {
    device_call call;
    std::uint64_t bytes;
    std::vector<double> ns;
  };
  std::vector<double>& samples_for(device_call call, std::uint64_t bytes) {
    for (sample_set& s : sets_) {
      if (s.call == call && s.bytes == bytes) return s.ns;
    }
    return sets_.emplace_back(sample_set{call, bytes, {}}).ns;
  }
  const std::function<std::uint64_t()>& now_ns_;
  std::vector<sample_set> sets_;
};

status plain_round(device& device, stopwatch& watch, std::uint64_t bytes) {
  ASSIGN_OR_RETURN(const auto block, watch.time(device_call::alloc, bytes, [&] { return device.alloc(bytes); }));
  return watch.time(device_call::free, bytes, [&] { return device.free(block); });
}

status pinned_round(device& device, stopwatch& watch, std::uint64_t bytes) {
  ASSIGN_OR_RETURN(const auto block,
                   watch.time(device_call::alloc_host, bytes, [&] { return device.alloc_host(bytes); }));
  return watch.time(device_call::free_host, bytes, [&] { return device.free_host(block); });
}

status mapped_round(device& device, stopwatch& watch, std::uint64_t bytes) {
  ASSIGN_OR_RETURN(const auto range, watch.time(device_call::reserve, bytes, [&] { return device.reserve(bytes); }));
  ASSIGN_OR_RETURN(const auto run, watch.time(device_call::create, bytes, [&] { return device.create(bytes); }));
  status went = watch.time(device_call::map, bytes, [&] { return device.map(range, bytes, run); });
  if (went.ok()) went = watch.time(device_call::set_access, bytes, [&] { return device.set_access(range, bytes); });
  if (went.ok()) went = watch.time(device_call::unmap, bytes, [&] { return device.unmap(range, bytes); });
  if (went.ok()) went = watch.time(device_call::destroy, bytes, [&] { return device.destroy(run); });
  if (went.ok())
    went = watch.time(device_call::release_range, bytes, [&] { return device.release_range(range, bytes); });
  return went;
}

status small_round(device& device, stopwatch& watch) {
  status went = watch.time(device_call::memory, 0, [&] { return device.memory(); }).why();
  if (!went) return went;
  const auto f = watch.time(device_call::record, 0, [&] { return device.record({}); });
  if (!f) return f.why();
  went = watch.time(device_call::wait_stream, 0, [&] { return device.wait_stream({}, *f); });
  if (went.ok()) went = watch.time(device_call::wait_host, 0, [&] { return device.wait_host(*f); });
  if (went.ok()) went = watch.time(device_call::query, 0, [&] { return device.query(*f); }).why();
  device.drop(*f);
  if (!went) return went;
  ASSIGN_OR_RETURN(const auto all, watch.time(device_call::record_context, 0, [&] { return device.record_context(); }));
  device.drop(all);
  went = watch.time(device_call::synchronize, 0, [&] { return device.synchronize(); });
  if (went.ok()) went = watch.time(device_call::stream_id, 0, [&] { return device.stream_id({}); }).why();
  if (went.ok()) went = watch.time(device_call::capture_id, 0, [&] { return device.capture_id({}); }).why();
  return went;
}

fitted_cost fit_of(device_call call, const std::vector<call_time>& times) {
  double n = 0;
  double sum_x = 0;
  double sum_y = 0;
  double sum_xx = 0;
  double sum_xy = 0;
  for (const call_time& t : times) {
    if (t.call != call) continue;
    const double x = t.bytes == 0 ? 0 : static_cast<double>(t.bytes / page - 1);
    n += 1;
    sum_x += x;
    sum_y += t.median_ns;
    sum_xx += x * x;
    sum_xy += x * t.median_ns;
  }
  const double spread = n * sum_xx - sum_x * sum_x;
  const double slope = spread == 0 ? 0 : (n * sum_xy - sum_x * sum_y) / spread;
  return {call, n == 0 ? 0 : (sum_y - slope * sum_x) / n, slope};
}

}  // namespace

result<cost_figures> measure_costs(device& device, const std::function<std::uint64_t()>& now_ns) {
  stopwatch watch{now_ns};
  // The first call creates the context; its time must not count for any call.
  if (status ready = device.synchronize(); !ready) return ready;
  const std::uint64_t most = device.info().total_bytes / 4;
  for (std::uint64_t bytes = page; bytes <= gib && bytes <= most; bytes *= 2) {
    for (unsigned i = 0; i < rounds; ++i) {
      if (status went = plain_round(device, watch, bytes); !went) return went;
      if (device.info().page_bytes != 0) {
        if (status went = mapped_round(device, watch, bytes); !went) return went;
      }
      if (bytes > most_pinned) continue;
      if (status went = pinned_round(device, watch, bytes); !went) return went;
    }
  }
  for (unsigned i = 0; i < rounds_small; ++i) {
    if (status went = small_round(device, watch); !went) return went;
  }
  cost_figures figures{.times = watch.times(), .fitted = {}};
  for (const call_time& t : figures.times) {
    if (figures.fitted.empty() || figures.fitted.back().call != t.call)
      figures.fitted.push_back(fit_of(t.call, figures.times));
  }
  return figures;
}

result<cost_figures> measure_costs_of(const replay_setup& setup) {
  if (!setup.cuda) {
    sim_device simulated{setup.device};
    return measure_costs(simulated, [&simulated] { return simulated.now_ns(); });
  }
  ASSIGN_OR_RETURN(const auto opened, open_cuda_device({.ordinal = setup.cuda->info.ordinal}));
  return measure_costs(*opened, [] {
    return static_cast<std::uint64_t>(
        std::chrono::nanoseconds{std::chrono::steady_clock::now().time_since_epoch()}.count());
  });
}

std::string costs_table(const cost_figures& figures, const replay_setup& setup) {
  std::string text = fmt::format("{:<16}{:>14}{:>24}\n", "call", "fixed ns", "per further 2 MiB ns");
  for (const fitted_cost& f : figures.fitted) {
    text += fmt::format("{:<16}{:>14.0f}{:>24.0f}\n", to_string(f.call), f.fixed_ns, f.per_page_ns);
  }
  const bool real = setup.cuda && !setup.cuda->info.simulated;
  return text + fmt::format("\n{} {}: medians, a line through the sizes from 2 MiB up.\n",
                            real         ? "Measured on"
                            : setup.cuda ? "Host time of gpumem and the driver's double, not of a GPU:"
                                         : "Simulated, the virtual clock of",
                            setup.device.name);
}

std::string costs_json(const cost_figures& figures, const replay_setup& setup) {
  using json = nlohmann::ordered_json;
  json all{{"schema", 1},
           {"command", "costs"},
           {"simulated", !setup.cuda || setup.cuda->info.simulated},
           {"device",
            {{"kind", setup.cuda ? "cuda" : "sim"},
             {"name", setup.device.name},
             {"total_bytes", setup.device.capacity_bytes}}},
           {"costs", json::array()},
           {"fitted", json::array()}};
  for (const call_time& t : figures.times) {
    all["costs"].push_back({{"call", to_string(t.call)},
                            {"bytes", t.bytes},
                            {"median_ns", t.median_ns},
                            {"p90_ns", t.p90_ns},
                            {"n", t.times}});
  }
  for (const fitted_cost& f : figures.fitted) {
    all["fitted"].push_back({{"call", to_string(f.call)}, {"fixed_ns", f.fixed_ns}, {"per_page_ns", f.per_page_ns}});
  }
  return all.dump(2, ' ', false, json::error_handler_t::replace) + "\n";
}

}  // namespace gpumem::bench
