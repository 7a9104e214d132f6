/// Opens the allocators, registers every case with Google Benchmark and collects the results.
#include "latency.hpp"

#include <benchmark/benchmark.h>
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <memory>
#include <set>

#include "latency_floor.hpp"
#include "latency_measured.hpp"
#include "text.hpp"

namespace gpumem::bench {
namespace {

/// Collects every repetition; prints nothing.
class collector final : public benchmark::BenchmarkReporter {
 public:
  struct key {
    std::string allocator;
    std::string name;
    unsigned threads;
    auto operator<=>(const key&) const = default;
  };
  bool ReportContext(const Context& /*context*/) override { return true; }
  void begin_round() { ++rounds_; }
  void ReportRuns(const std::vector<Run>& runs) override {
    for (const Run& r : runs) {
      if (r.run_type != Run::RT_Iteration) continue;
      const std::string& name = r.run_name.function_name;
      const std::size_t bar = name.find('|');
      const std::size_t second = name.find('|', bar + 1);
      key k{name.substr(0, bar), name.substr(bar + 1, second - bar - 1), static_cast<unsigned>(r.threads)};
      if (r.error_occurred) {
        failed_.insert(k);
      } else {
        std::vector<std::optional<round_time>>& times = times_[k];
        times.resize(rounds_);
        times.back() = round_time{r.real_accumulated_time / static_cast<double>(r.iterations) * 1e9};
      }
    }
  }
  [[nodiscard]] std::vector<latency_row> rows() {
    std::vector<latency_row> collected;
    for (const key& k : failed_) {
      if (times_.count(k) != 0) continue;
      latency_row& row = collected.emplace_back();
      row.allocator = k.allocator;
      row.name = k.name;
      row.threads = k.threads;
      row.oom = true;
    }
    for (auto& [k, rounds] : times_) {
      std::vector<double> ns;
      for (const auto& round : rounds) {
        if (round) ns.push_back(round->ns);
      }
      std::sort(ns.begin(), ns.end());
      latency_row& row = collected.emplace_back();
      row.allocator = k.allocator;
      row.name = k.name;
      row.threads = k.threads;
      row.median_ns = ns[ns.size() / 2];
      row.least_ns = ns.front();
      row.most_ns = ns.back();
      row.rounds = std::move(rounds);
    }
    return collected;
  }

 private:
  std::size_t rounds_ = 0;  // begun
  std::map<key, std::vector<std::optional<round_time>>> times_;
  std::set<key> failed_;
};

result<std::unique_ptr<cuda_replay_device>> open_replay_device(const options& options) {
  const auto& cuda = options.setup.cuda;
  return cuda_replay_device::open({.simulated = !cuda || cuda->info.simulated,
                                   .ordinal = cuda ? cuda->info.ordinal : 0,
                                   .bytes = cuda ? cuda->info.total_bytes : options.setup.device.capacity_bytes,
                                   .referee = false,
                                   .works = false});
}

std::vector<latency_row> run_benchmarks(const case_list& cases) {
  std::string name = "gpumem_bench";
  std::array argv{name.data()};
  auto argc = static_cast<int>(argv.size());
  benchmark::Initialize(&argc, argv.data());
  collector collected;
  std::minstd_rand random;
  for (int round = 0; round < latency_repetitions; ++round) {
    collected.begin_round();
    if (cases.register_round(round, random)) benchmark::RunSpecifiedBenchmarks(&collected);
  }
  benchmark::ClearRegisteredBenchmarks();
  return collected.rows();
}

/// Converts times of an iteration to times of a pair or of an operation, as the row's kind says.
void scale(latency_row& row, const std::vector<replay_loop>& loops, const std::vector<std::string>& traces) {
  double iterations = 1;
  for (std::size_t i = 0; i < traces.size(); ++i) {
    if (row.name != "replay_" + traces[i] && row.name != "replay_loop_" + traces[i]) continue;
    iterations = static_cast<double>(loops[i].ops.size());
    row.pairs_per_iteration = static_cast<double>(loops[i].frees) / iterations;
    row.iteration = iteration_kind::operation;
  }
  if (row.name == "handoff" || row.name == "handoff_ring") iterations = handoff_batch;
  if (row.name == "worst" || (row.allocator == "floor" && row.iteration == iteration_kind::pair))
    row.iteration = iteration_kind::other;
  row.median_ns /= iterations;
  row.least_ns /= iterations;
  row.most_ns /= iterations;
  for (auto& round : row.rounds) {
    if (round) round->ns /= iterations;
  }
}

/// Adds the simulated part to rows of one thread. With several threads, time spent waiting inside the device belongs to
/// no single row.
void add_simulated_shares(std::vector<latency_row>& all) {
  for (latency_row& row : all) {
    if (row.name == "driver_part" || row.name == "worst" || row.threads != 1 || row.oom) continue;
    const auto part = std::find_if(all.begin(), all.end(), [&row](const latency_row& candidate) {
      return candidate.allocator == row.allocator && candidate.name == "driver_part";
    });
    if (part == all.end()) continue;
    row.simulated_share_ns = part->median_ns * row.pairs_per_iteration;
    row.least_share_ns = part->least_ns * row.pairs_per_iteration;
    for (std::size_t i = 0; i < std::min(row.rounds.size(), part->rounds.size()); ++i) {
      if (row.rounds[i] && part->rounds[i])
        row.rounds[i]->simulated_share_ns = part->rounds[i]->ns * row.pairs_per_iteration;
    }
  }
}

}  // namespace

result<std::vector<latency_row>> measure_latency(const std::vector<policy_row>& rows, const std::vector<trace>& traces,
                                                 const options& options) {
  std::unique_ptr<cuda_replay_device> replay_device;
  if (options.setup.cuda ||
      std::any_of(rows.begin(), rows.end(), [](const auto& candidate) { return !candidate.baseline.empty(); })) {
    auto opened = open_replay_device(options);
    if (!opened) return opened.why();
    replay_device = *std::move(opened);
  }
  std::vector<unsigned> threads = options.threads;
  if (threads.empty()) threads = {1, 2, 3, 4, 5, 6, 7, 8};
  std::vector<replay_loop> loops;
  std::vector<std::string> names;
  for (const trace& each : traces) {
    loops.push_back(loop_of(each));
    names.push_back(each.name);
  }
  case_list cases{options.cases};
  latency_floor floor;
  floor.add(cases, threads, loops, names);
  std::vector<std::unique_ptr<measured_row>> measured;
  std::map<std::string, measured_row*> by_name;
  for (const policy_row& row : rows) {
    const row_context context{.row = &row,
                              .name = row.baseline.empty() ? "gpumem/" + row.text : row.baseline,
                              .command_options = &options,
                              .replay_device = replay_device.get(),
                              .threads = &threads,
                              .loops = &loops,
                              .traces = &names};
    const auto add = [&](auto allocator_cases) {
      status added = allocator_cases->add(cases, context);
      by_name[context.name] = allocator_cases.get();
      measured.push_back(std::move(allocator_cases));
      return added;
    };
    status added = row.baseline.empty() ? add(std::make_unique<measured_subject<gpumem_subject>>())
                                        : add(std::make_unique<measured_subject<baseline_subject>>());
    if (!added) return added;
  }
  if (const std::string* const unknown = cases.unknown()) {
    return status{errc::bad_setting, fmt::format("--case {}: expected the beginning of a case's name, such as pair, "
                                                 "live_1e4, handoff, replay or worst",
                                                 printable(*unknown))};
  }
  std::vector<latency_row> all = run_benchmarks(cases);
  std::sort(all.begin(), all.end(), [&](const auto& lhs, const auto& rhs) {
    return cases.place(lhs.allocator, lhs.name, lhs.threads) < cases.place(rhs.allocator, rhs.name, rhs.threads);
  });
  for (latency_row& row : all) {
    scale(row, loops, names);
    if (row.name != "worst" || row.oom) continue;
    row.tail = row.allocator == "floor" ? std::optional{floor.worst()->tail()} : by_name.at(row.allocator)->tail();
  }
  if (!options.setup.cuda || options.setup.cuda->info.simulated) add_simulated_shares(all);
  return all;
}

}  // namespace gpumem::bench
