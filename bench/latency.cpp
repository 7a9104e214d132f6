#include "latency.hpp"

#include <benchmark/benchmark.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cmath>
#include <map>
#include <mutex>
#include <nlohmann/json.hpp>
#include <numeric>
#include <random>
#include <set>
#include <thread>

#include "bits.hpp"
#include "latency_subjects.hpp"

namespace gpumem::bench {
namespace {

struct sized_case {
  const char* name;
  std::size_t bytes;
};
constexpr std::array pair_cases{sized_case{"pair_512", 512}, sized_case{"pair_4KiB", 4 * kib},
                                sized_case{"pair_256KiB", 256 * kib}, sized_case{"pair_2MiB", 2 * mib},
                                sized_case{"pair_64MiB", 64 * mib}};
constexpr std::array live_powers{2, 3, 4, 5, 6};
constexpr int most_uncached_power = 3;  // a driver call for each of more blocks would take minutes
constexpr std::size_t handoff_batch = 4096;

void one_pair(benchmark::State& state, latency_subject& of, std::size_t bytes) {
  const stream_ref s = of.stream(static_cast<unsigned>(state.thread_index()));
  for (auto turn : state) {
    static_cast<void>(turn);
    void* const p = of.allocate(bytes, s);
    if (p == nullptr) {
      state.SkipWithError("out of memory");
      break;
    }
    of.release(p, s);
  }
}

/// Frees a block at random and allocates another of 512 B to 4 KiB, over so many that live: `blocks`, filled by the
/// first run of the case and kept for the next, since a million take longer than the measurement.
void random_walk(benchmark::State& state, latency_subject& of, std::size_t live, std::vector<void*>& blocks) {
  const stream_ref s = of.stream(0);
  std::minstd_rand random{1};
  blocks.reserve(live);
  const auto any_size = [&random] { return 512 * (1 + random() % 8); };
  while (blocks.size() < live) {
    void* const p = of.allocate(any_size(), s);
    if (p == nullptr) {
      state.SkipWithError("out of memory");
      break;
    }
    blocks.push_back(p);
  }
  if (blocks.size() == live) {
    for (auto turn : state) {
      static_cast<void>(turn);
      void*& p = blocks[random() % live];
      of.release(p, s);
      p = of.allocate(any_size(), s);
    }
  }
}

/// One thread allocates, another one frees, through a ring of pointers; a turn is a batch of pairs.
void hand_off(benchmark::State& state, latency_subject& of) {
  const stream_ref s = of.stream(0);
  std::vector<std::atomic<void*>> ring(handoff_batch);
  std::atomic<std::size_t> freed{0};
  std::atomic<bool> stop{false};
  std::thread other{[&] {
    for (std::size_t i = 0; !stop.load(std::memory_order_relaxed);) {
      void* const p = ring[i % handoff_batch].exchange(nullptr, std::memory_order_acquire);
      if (p == nullptr) {
        std::this_thread::yield();
        continue;
      }
      of.release(p, s);
      freed.store(++i, std::memory_order_release);
    }
  }};
  std::size_t given = 0;
  bool failed = false;
  for (auto turn : state) {
    static_cast<void>(turn);
    for (std::size_t i = 0; i < handoff_batch && !failed; ++i) {
      void* const p = of.allocate(4 * kib, s);
      failed = p == nullptr;
      if (!failed) ring[given++ % handoff_batch].store(p, std::memory_order_release);
    }
    while (freed.load(std::memory_order_acquire) != given) std::this_thread::yield();
    if (failed) {
      state.SkipWithError("out of memory");
      break;
    }
  }
  stop = true;
  other.join();
  state.SetItemsProcessed(static_cast<std::int64_t>(given));
}

[[gnu::noinline]] void* empty_call(void* p) {
  benchmark::DoNotOptimize(p);
  return p;
}

void floor_chase(benchmark::State& state, std::size_t blocks) {
  struct alignas(64) node {
    std::uint32_t next;
  };
  std::vector<node> nodes(blocks);
  std::vector<std::uint32_t> order(blocks);
  std::iota(order.begin(), order.end(), 0U);
  std::shuffle(order.begin(), order.end(), std::minstd_rand{1});
  for (std::size_t i = 0; i < blocks; ++i) nodes[order[i]].next = order[(i + 1) % blocks];
  std::uint32_t at = 0;
  for (auto turn : state) {
    static_cast<void>(turn);
    at = nodes[at].next;
    benchmark::DoNotOptimize(at);
  }
}

void floor_spin(benchmark::State& state) {
  std::uint64_t x = 1;
  for (auto turn : state) {
    static_cast<void>(turn);
    for (int i = 0; i < 32; ++i) benchmark::DoNotOptimize(x = x * 6364136223846793005U + 1);
  }
}

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
  void ReportRuns(const std::vector<Run>& runs) override {
    for (const Run& r : runs) {
      if (r.run_type != Run::RT_Iteration) continue;
      const std::string& name = r.run_name.function_name;
      const std::size_t bar = name.find('|');
      const std::size_t second = name.find('|', bar + 1);
      key k{name.substr(0, bar), name.substr(bar + 1, second - bar - 1), static_cast<unsigned>(r.threads)};
      if (r.error_occurred) {
        failed_.insert(k);
        continue;
      }
      const auto turns = static_cast<double>(r.iterations);
      double ns = r.real_accumulated_time / turns * 1e9;
      if (k.name == "handoff") ns /= static_cast<double>(handoff_batch);
      times_[k].push_back(ns);
    }
  }
  [[nodiscard]] std::vector<latency_row> rows() {
    std::vector<latency_row> out;
    for (const key& k : failed_) {
      if (times_.count(k) != 0) continue;
      latency_row& row = out.emplace_back();
      row.allocator = k.allocator;
      row.name = k.name;
      row.threads = k.threads;
      row.oom = true;
    }
    for (auto& [k, ns] : times_) {
      std::sort(ns.begin(), ns.end());
      out.push_back({.allocator = k.allocator,
                     .name = k.name,
                     .threads = k.threads,
                     .oom = false,
                     .median_ns = ns[ns.size() / 2],
                     .least_ns = ns.front(),
                     .most_ns = ns.back(),
                     .double_share_ns = {}});
    }
    return out;
  }

 private:
  std::map<key, std::vector<double>> times_;
  std::set<key> failed_;
};

/// The order in which cases were added, which interleaving loses.
std::vector<std::string>& added() {
  static std::vector<std::string> names;
  return names;
}
std::string name_of(const std::string& allocator, const std::string& name, unsigned threads) {
  return fmt::format("{}|{}|{}", allocator, name, threads);
}

template <typename Body>
void add(const std::string& allocator, const std::string& name, unsigned threads, Body body) {
  added().push_back(name_of(allocator, name, threads));
  benchmark::RegisterBenchmark(fmt::format("{}|{}|", allocator, name).c_str(), body)
      ->Threads(static_cast<int>(threads))
      ->UseRealTime();
}

/// An allocator of its own for the walks, so that the pairs do not meet their million blocks.
struct walked_subject {
  walked_subject() = default;
  walked_subject(const walked_subject&) = delete;
  walked_subject& operator=(const walked_subject&) = delete;
  ~walked_subject() {
    for (const std::vector<void*>& list : blocks) {
      for (void* p : list) {
        if (p != nullptr) of->release(p, of->stream(0));
      }
    }
  }
  std::unique_ptr<latency_subject> of;
  std::array<std::vector<void*>, 7> blocks;  ///< by power of ten
};

std::string power_name(const char* what, int power) { return fmt::format("{}_1e{}", what, power); }
std::size_t power_of_ten(int power) { return static_cast<std::size_t>(std::lround(std::pow(10.0, power))); }

void add_floor(const std::vector<unsigned>& threads) {
  add("floor", "empty_call", 1, [](benchmark::State& state) {
    void* p = nullptr;
    for (auto turn : state) {
      static_cast<void>(turn);
      p = empty_call(p);
    }
  });
  add("floor", "mutex", 1, [](benchmark::State& state) {
    std::mutex mutex;
    for (auto turn : state) {
      static_cast<void>(turn);
      mutex.lock();
      benchmark::ClobberMemory();
      mutex.unlock();
    }
  });
  for (const int power : live_powers) {
    add("floor", power_name("chase", power), 1,
        [power](benchmark::State& state) { floor_chase(state, power_of_ten(power)); });
  }
  for (const unsigned n : threads) add("floor", "spin", n, floor_spin);
}

void add_subject(const std::string& allocator, latency_subject& of, walked_subject& walked,
                 const std::vector<unsigned>& threads) {
  for (const sized_case& c : pair_cases) {
    add(allocator, c.name, 1, [&of, c](benchmark::State& state) { one_pair(state, of, c.bytes); });
  }
  for (const unsigned n : threads) {
    if (n == 1 || !of.caches()) continue;
    add(allocator, "pair_4KiB", n, [&of](benchmark::State& state) { one_pair(state, of, 4 * kib); });
  }
  for (const int power : live_powers) {
    if (!of.caches() && power > most_uncached_power) continue;
    add(allocator, power_name("live", power), 1, [&walked, power](benchmark::State& state) {
      random_walk(state, *walked.of, power_of_ten(power), walked.blocks[static_cast<std::size_t>(power)]);
    });
  }
  if (of.caches()) add(allocator, "handoff", 1, [&of](benchmark::State& state) { hand_off(state, of); });
  if (of.driver_part(of.stream(0))) {
    add(allocator, "driver_part", 1, [&of](benchmark::State& state) {
      const stream_ref s = of.stream(0);
      for (auto turn : state) {
        static_cast<void>(turn);
        of.driver_part(s);
      }
    });
  }
}

}  // namespace

result<std::vector<latency_row>> measure_latency(const std::vector<policy_row>& rows, const options& with) {
  const bool baselines = std::any_of(rows.begin(), rows.end(), [](const auto& r) { return !r.baseline.empty(); });
  std::unique_ptr<cuda_stage> stage;
  if (baselines || with.setup.cuda) {
    const auto& cuda = with.setup.cuda;
    auto opened = cuda_stage::open({.simulated = !cuda || cuda->info.simulated,
                                    .ordinal = cuda ? cuda->info.ordinal : 0,
                                    .bytes = cuda ? cuda->info.total_bytes : with.setup.device.capacity_bytes,
                                    .referee = false,
                                    .works = false});
    if (!opened) return opened.why();
    stage = *std::move(opened);
  }
  std::vector<unsigned> threads = with.threads;
  if (threads.empty()) threads = {1, 2, 4, 8};
  std::vector<std::unique_ptr<latency_subject>> subjects;
  std::vector<std::unique_ptr<walked_subject>> walked;
  add_floor(threads);
  for (const policy_row& row : rows) {
    auto opened = open_latency_subject(row, with.setup, stage.get());
    if (!opened) return opened.why();
    subjects.push_back(*std::move(opened));
    auto beside = open_latency_subject(row, with.setup, stage.get());
    if (!beside) return beside.why();
    walked.push_back(std::make_unique<walked_subject>());
    walked.back()->of = *std::move(beside);
    add_subject(row.baseline.empty() ? "gpumem/" + row.text : row.baseline, *subjects.back(), *walked.back(), threads);
  }
  std::array words{std::string{"gpumem_bench"}, std::string{"--benchmark_enable_random_interleaving=true"},
                   std::string{"--benchmark_repetitions=5"}, std::string{"--benchmark_min_time=0.005"}};
  std::vector<char*> argv;
  for (std::string& w : words) argv.push_back(w.data());
  auto argc = static_cast<int>(argv.size());
  benchmark::Initialize(&argc, argv.data());
  collector collected;
  benchmark::RunSpecifiedBenchmarks(&collected);
  benchmark::ClearRegisteredBenchmarks();
  std::vector<latency_row> all = collected.rows();
  const auto place = [](const latency_row& r) {
    return std::find(added().begin(), added().end(), name_of(r.allocator, r.name, r.threads)) - added().begin();
  };
  std::sort(all.begin(), all.end(), [&](const auto& a, const auto& b) { return place(a) < place(b); });
  const bool simulated = !with.setup.cuda || with.setup.cuda->info.simulated;
  for (latency_row& row : all) {
    const auto part = std::find_if(all.begin(), all.end(), [&row](const latency_row& other) {
      return other.allocator == row.allocator && other.name == "driver_part";
    });
    if (simulated && part != all.end() && row.name != "driver_part") row.double_share_ns = part->median_ns;
  }
  return all;
}

std::string latency_table(const std::vector<latency_row>& rows, const replay_setup& setup) {
  std::string out = fmt::format("{:<34}{:<14}{:>8}{:>12}{:>12}{:>12}{:>14}\n", "allocator", "case", "threads",
                                "ns/pair", "least", "most", "double's part");
  for (const latency_row& r : rows) {
    if (r.oom) {
      out += fmt::format("{:<34}{:<14}{:>8}  out of memory\n", r.allocator, r.name, r.threads);
      continue;
    }
    out +=
        fmt::format("{:<34}{:<14}{:>8}{:>12.1f}{:>12.1f}{:>12.1f}{:>14}\n", r.allocator, r.name, r.threads, r.median_ns,
                    r.least_ns, r.most_ns, r.double_share_ns ? fmt::format("{:.1f}", *r.double_share_ns) : "-");
  }
  const bool real = setup.cuda && !setup.cuda->info.simulated;
  return out + fmt::format("\nMedians of 5 interleaved repetitions, wall-clock time over the pairs of all threads{}.\n",
                           real ? ", on " + setup.device.name
                                : ", host time alone: the device is simulated, and a baseline's part that is the "
                                  "double's of the driver is given beside it");
}

std::string latency_json(const std::vector<latency_row>& rows, const replay_setup& setup) {
  using json = nlohmann::ordered_json;
  json all{{"schema", 1},
           {"command", "latency"},
           {"simulated", !setup.cuda || setup.cuda->info.simulated},
           {"device", {{"kind", setup.cuda ? "cuda" : "sim"}, {"name", setup.device.name}}},
           {"results", json::array()}};
  for (const latency_row& r : rows) {
    all["results"].push_back({{"allocator", r.allocator},
                              {"case", r.name},
                              {"threads", r.threads},
                              {"ns_per_pair", r.oom ? json(nullptr) : json(r.median_ns)},
                              {"least_ns", r.oom ? json(nullptr) : json(r.least_ns)},
                              {"most_ns", r.oom ? json(nullptr) : json(r.most_ns)},
                              {"oom", r.oom},
                              {"double_share_ns", r.double_share_ns ? json(*r.double_share_ns) : json(nullptr)}});
  }
  return all.dump(2, ' ', false, json::error_handler_t::replace) + "\n";
}

}  // namespace gpumem::bench
