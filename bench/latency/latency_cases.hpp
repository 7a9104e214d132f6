/// The cases of `latency` as functions for Google Benchmark, over any subject (latency_subjects.hpp).
///
/// A case is identified by `allocator|case|threads`. The caller of `add` owns the state that a case keeps between
/// repetitions (live blocks, times of single operations).
#pragma once

#include <benchmark/benchmark.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <functional>
#include <random>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "gpumem/device.hpp"
#include "latency.hpp"

namespace gpumem::bench {

inline constexpr std::array live_powers{2, 3, 4, 5, 6};

// Iterations of a repetition. Each repetition takes about a millisecond: most then fall between two interruptions, and
// the start of a thread is a small part. Subjects define the number for pairs.
inline constexpr std::size_t short_iterations = 200'000;  ///< of a few nanoseconds each
inline constexpr std::size_t spin_iterations = 120'000;
inline constexpr std::size_t driver_part_iterations = 8000;
inline constexpr std::size_t uncached_iterations = 128;  ///< with a driver call in each
inline constexpr std::size_t walk_iterations = 4000;
/// Least number of operations in a repetition of a trace, which consists of whole passes. Refilling the processor's
/// caches after other cases takes a tenth of a pass of 50,000.
inline constexpr std::size_t replay_operations = 250'000;
constexpr std::size_t replay_iterations(std::size_t operations) {
  return operations == 0 ? 1 : (replay_operations + operations - 1) / operations;
}

/// The cases of a run, in order; registered with Google Benchmark one round at a time.
class case_list {
 public:
  /// Restricts `add` to cases whose names begin with one of these; empty: all.
  explicit case_list(std::vector<std::string> wanted) : wanted_{std::move(wanted)} {}

  [[nodiscard]] bool wants(std::string_view name) const {
    return wanted_.empty() ||
           std::any_of(wanted_.begin(), wanted_.end(), [name](const auto& prefix) { return name.starts_with(prefix); });
  }
  /// `iterations` is the number in one repetition, on each thread. It is fixed, because an interrupted calibration run
  /// could conclude that one iteration is enough.
  template <typename Body>
  void add(const std::string& allocator, const std::string& name, unsigned threads, std::size_t iterations, Body body,
           int repetitions = latency_repetitions) {
    if (wants(name)) add_always(allocator, name, threads, iterations, std::move(body), repetitions);
  }
  template <typename Body>
  void add_always(const std::string& allocator, const std::string& name, unsigned threads, std::size_t iterations,
                  Body body, int repetitions = latency_repetitions) {
    cases_.push_back({allocator, name, threads, iterations, repetitions, std::move(body)});
  }
  /// Registers the cases of a round. Runs a case of all allocators back to back, so that they meet the same load of the
  /// machine. Shuffles cases and allocators in each round. Pass the same `random` to all rounds. False if the round has
  /// no case.
  [[nodiscard]] bool register_round(int round, std::minstd_rand& random) const {
    std::vector<std::vector<const one_case*>> alike;
    for (const one_case& c : cases_) {
      if (round % ((latency_repetitions - 1) / (c.repetitions - 1)) != 0) continue;
      const auto same = std::find_if(alike.begin(), alike.end(), [&c](const auto& equals) {
        return equals.front()->name == c.name && equals.front()->threads == c.threads;
      });
      (same != alike.end() ? *same : alike.emplace_back()).push_back(&c);
    }
    std::shuffle(alike.begin(), alike.end(), random);
    benchmark::ClearRegisteredBenchmarks();
    for (auto& group : alike) {
      std::shuffle(group.begin(), group.end(), random);
      for (const one_case* const c : group) {
        benchmark::RegisterBenchmark(fmt::format("{}|{}|", c->allocator, c->name).c_str(), c->body)
            ->Threads(static_cast<int>(c->threads))
            ->Iterations(static_cast<benchmark::IterationCount>(c->iterations))
            ->UseRealTime();
      }
    }
    return !alike.empty();
  }
  [[nodiscard]] std::ptrdiff_t place(const std::string& allocator, const std::string& name, unsigned threads) const {
    return std::find_if(cases_.begin(), cases_.end(),
                        [&](const one_case& candidate) {
                          return candidate.allocator == allocator && candidate.name == name &&
                                 candidate.threads == threads;
                        }) -
           cases_.begin();
  }
  /// The first requested prefix that matches no case; null if all match.
  [[nodiscard]] const std::string* unknown() const {
    const auto found = std::find_if(wanted_.begin(), wanted_.end(), [this](const std::string& prefix) {
      return std::none_of(cases_.begin(), cases_.end(),
                          [&prefix](const one_case& registered) { return registered.name.starts_with(prefix); });
    });
    return found != wanted_.end() ? &*found : nullptr;
  }

 private:
  struct one_case {
    std::string allocator;
    std::string name;
    unsigned threads;
    std::size_t iterations;
    int repetitions;
    std::function<void(benchmark::State&)> body;
  };
  static_assert((latency_repetitions - 1) % (latency_long_repetitions - 1) == 0);

  std::vector<std::string> wanted_;
  std::vector<one_case> cases_;
};

inline std::string power_name(std::string_view kind, int power) { return fmt::format("{}_1e{}", kind, power); }
constexpr std::size_t power_of_ten(int power) { return power == 0 ? 1 : 10 * power_of_ten(power - 1); }

/// Knuth's MMIX generator: one multiplication per number, because it runs in the timed loop.
class cheap_random {
 public:
  std::uint64_t next() { return state_ = state_ * 6364136223846793005U + 1442695040888963407U; }
  /// In [0, end), from the upper half of `number`. Requires `end` below 2^32.
  static std::size_t below(std::uint64_t number, std::size_t end) { return ((number >> 32) * end) >> 32; }
  /// 512 to 512 * `sizes` bytes, from bits that `below` hardly uses. Requires that `sizes` is a power of two.
  static std::size_t bytes(std::uint64_t number, std::size_t sizes) {
    return 512 * (1 + ((number >> 20) & (sizes - 1)));
  }

 private:
  std::uint64_t state_ = 1;
};

template <typename subject>
void one_pair(benchmark::State& state, subject& measured, std::size_t bytes) {
  if (state.thread_index() != 0) measured.enter_thread();
  const stream_ref s = measured.stream(static_cast<std::size_t>(state.thread_index()));
  for (auto iteration : state) {
    static_cast<void>(iteration);
    void* const p = measured.allocate(bytes, s);
    if (p == nullptr) {
      state.SkipWithError("out of memory");
      break;
    }
    measured.release(p, s);
  }
}

/// Keeps the live blocks of a walk between its repetitions, since allocating a million takes longer than the
/// measurement.
template <typename subject>
class live_blocks {
 public:
  explicit live_blocks(subject& measured) : subject_{&measured} {}
  ~live_blocks() {
    for (void* p : blocks_) {
      if (p != nullptr) subject_->release(p, subject_->stream(0));
    }
  }
  live_blocks& operator=(live_blocks&&) = delete;

  /// Fills up to `live` blocks of up to `sizes` different sizes. False if memory ran out.
  bool fill(std::size_t live, std::size_t sizes) {
    blocks_.reserve(live);
    while (blocks_.size() < live) {
      void* const p = subject_->allocate(cheap_random::bytes(random.next(), sizes), subject_->stream(0));
      if (p == nullptr) return false;
      blocks_.push_back(p);
    }
    return true;
  }
  [[nodiscard]] subject& of() const { return *subject_; }
  [[nodiscard]] void** data() { return blocks_.data(); }

  cheap_random random;

 private:
  subject* subject_;
  std::vector<void*> blocks_;
};

inline constexpr std::size_t walk_sizes = 8;  ///< 512 B to 4 KiB

/// Frees a random block and allocates another, with `live` blocks in all.
template <typename subject>
void random_walk(benchmark::State& state, live_blocks<subject>& blocks_held, std::size_t live) {
  if (!blocks_held.fill(live, walk_sizes)) {
    state.SkipWithError("out of memory");
    return;
  }
  subject& measured = blocks_held.of();
  const stream_ref s = measured.stream(0);
  void** const blocks = blocks_held.data();
  cheap_random random = blocks_held.random;
  for (auto iteration : state) {
    static_cast<void>(iteration);
    const std::uint64_t number = random.next();
    void*& p = blocks[cheap_random::below(number, live)];
    measured.release(p, s);
    p = measured.allocate(cheap_random::bytes(number, walk_sizes), s);
    if (p == nullptr) {
      state.SkipWithError("out of memory");
      break;
    }
  }
  blocks_held.random = random;
}

}  // namespace gpumem::bench
