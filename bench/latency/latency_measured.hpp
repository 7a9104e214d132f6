/// The cases of one row of `latency`, and the allocators they run on.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "latency_cases.hpp"
#include "latency_hand_off.hpp"
#include "latency_replay.hpp"
#include "latency_subjects.hpp"
#include "latency_worst.hpp"
#include "options.hpp"

namespace gpumem::bench {

inline constexpr int most_uncached_power = 3;  // more would take minutes, with a driver call for each block

struct sized_case {
  const char* name;
  std::size_t bytes;
};
inline constexpr std::array pair_cases{sized_case{"pair_512", 512}, sized_case{"pair_4KiB", 4 * kib},
                                       sized_case{"pair_256KiB", 256 * kib}, sized_case{"pair_2MiB", 2 * mib},
                                       sized_case{"pair_64MiB", 64 * mib}};

/// One row of the table. Each kind of case has its own allocator, so that the million blocks of the walks do not affect
/// pairs, nor one trace another.
class measured_row {
 public:
  measured_row() = default;
  measured_row& operator=(measured_row&&) = delete;
  virtual ~measured_row() = default;
  virtual std::optional<tail_times> tail() = 0;
};

struct row_context {
  const policy_row* row;
  std::string name;
  const options* command_options;
  cuda_replay_device* replay_device;
  const std::vector<unsigned>* threads;
  const std::vector<replay_loop>* loops;
  const std::vector<std::string>* traces;
};

template <typename subject>
class measured_subject final : public measured_row {
 public:
  /// Adds the requested cases and opens the allocators they need.
  status add(case_list& cases, const row_context& context) {
    const unsigned most_threads = *std::max_element(context.threads->begin(), context.threads->end());
    const auto paired = open(context, most_threads);
    if (!paired) return paired.why();
    add_pairs(cases, context, **paired);
    if (status walks = add_walks(cases, context); !walks) return walks;
    if (!(*paired)->caches_every_size()) return {};
    if (status replays = add_replays(cases, context); !replays) return replays;
    return add_worst(cases, context);
  }
  std::optional<tail_times> tail() override { return worst_ ? std::optional{worst_->tail()} : std::nullopt; }

 private:
  result<subject*> open(const row_context& context, std::size_t streams) {
    auto opened = subject::open(*context.row, context.command_options->setup, context.replay_device, streams);
    if (!opened) return opened.why();
    subjects_.push_back(*std::move(opened));
    return subjects_.back().get();
  }

  void add_pairs(case_list& cases, const row_context& context, subject& measured) {
    // Allocates each size once, so that the cases do not depend on which size runs first.
    for (const sized_case& c : pair_cases) {
      if (void* const p = measured.allocate(c.bytes, measured.stream(0))) measured.release(p, measured.stream(0));
    }
    for (const sized_case& c : pair_cases) {
      const bool cached = measured.caches(c.bytes);
      cases.add(
          context.name, c.name, 1, cached ? subject::pair_iterations : uncached_iterations,
          [&measured, c](benchmark::State& state) { one_pair(state, measured, c.bytes); },
          cached ? latency_repetitions : latency_long_repetitions);
    }
    for (const unsigned n : *context.threads) {
      if (n == 1 || !measured.caches(4 * kib)) continue;
      cases.add(
          context.name, "pair_4KiB", n, subject::pair_iterations,
          [&measured](benchmark::State& state) { one_pair(state, measured, 4 * kib); }, subject::repetitions);
    }
    if (measured.caches(4 * kib)) {
      hand_off_ = std::make_unique<handed_over<subject>>(measured);
      if (cases.wants("handoff")) hand_off_->begin();
      cases.add(
          context.name, "handoff", 1, subject::handoff_iterations,
          [this](benchmark::State& state) { hand_off_->run(state); }, subject::repetitions);
    }
    if (!measured.driver_part(measured.stream(0))) return;
    cases.add_always(context.name, "driver_part", 1, driver_part_iterations, [&measured](benchmark::State& state) {
      const stream_ref s = measured.stream(0);
      for (auto iteration : state) {
        static_cast<void>(iteration);
        measured.driver_part(s);
      }
    });
  }

  status add_walks(case_list& cases, const row_context& context) {
    subject* measured = nullptr;
    for (const int power : live_powers) {
      const std::string name = power_name("live", power);
      if (!cases.wants(name)) continue;
      if (measured == nullptr) {
        const auto opened = open(context, 1);
        if (!opened) return opened.why();
        measured = *opened;
      }
      if (!measured->caches(4 * kib) && power > most_uncached_power) continue;
      walks_.push_back(std::make_unique<live_blocks<subject>>(*measured));
      cases.add(
          context.name, name, 1, measured->caches(4 * kib) ? walk_iterations : uncached_iterations,
          [over = walks_.back().get(), power](benchmark::State& state) {
            random_walk(state, *over, power_of_ten(power));
          },
          subject::repetitions);
    }
    return {};
  }

  status add_replays(case_list& cases, const row_context& context) {
    for (std::size_t i = 0; i < context.loops->size(); ++i) {
      const std::string name = "replay_" + (*context.traces)[i];
      if (!cases.wants(name)) continue;
      const replay_loop& loop = (*context.loops)[i];
      const auto opened = open(context, loop.streams);
      if (!opened) return opened.why();
      replays_.push_back(std::make_unique<replayed<subject>>(**opened, loop));
      cases.add(
          context.name, name, 1, replay_iterations(loop.ops.size()),
          [of = replays_.back().get()](benchmark::State& state) { of->run(state); }, latency_long_repetitions);
    }
    return {};
  }

  status add_worst(case_list& cases, const row_context& context) {
    if (!cases.wants("worst")) return {};
    worst_ = std::make_unique<worst_case<subject>>(
        [context] { return subject::open(*context.row, context.command_options->setup, context.replay_device, 1); },
        latency_long_repetitions);
    cases.add(
        context.name, "worst", 1, worst_pairs, [this](benchmark::State& state) { worst_->run(state); },
        latency_long_repetitions);
    return {};
  }

  std::vector<std::unique_ptr<subject>> subjects_;  // destroyed last
  std::vector<std::unique_ptr<live_blocks<subject>>> walks_;
  std::vector<std::unique_ptr<replayed<subject>>> replays_;
  std::unique_ptr<handed_over<subject>> hand_off_;
  std::unique_ptr<worst_case<subject>> worst_;
};

}  // namespace gpumem::bench
