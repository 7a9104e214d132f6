#include "latency_floor.hpp"

#include <cstdint>
#include <mutex>
#include <numeric>
#include <random>

namespace gpumem::bench {
namespace {

[[gnu::noinline]] void* empty_call(void* pointer) {
  benchmark::DoNotOptimize(pointer);
  return pointer;
}

void call_nothing(benchmark::State& state) {
  void* p = nullptr;
  for (auto iteration : state) {
    static_cast<void>(iteration);
    p = empty_call(p);
  }
}

void lock_and_unlock(benchmark::State& state) {
  std::mutex mutex;
  for (auto iteration : state) {
    static_cast<void>(iteration);
    mutex.lock();
    benchmark::ClobberMemory();
    mutex.unlock();
  }
}

/// Four chains of additions, which issue about as many instructions a cycle as an allocate and a free. A chain of
/// multiplications would leave most of a core idle, so that a sibling thread would not slow it and its scaling would
/// not show how busy the machine is.
void spin(benchmark::State& state) {
  std::uint64_t a = 1;
  std::uint64_t b = 2;
  std::uint64_t c = 3;
  std::uint64_t d = 4;
  std::uint64_t step = 5;
  asm volatile("" : "+r"(step));  // no constant: some processors execute additions of constants for free
  for (auto iteration : state) {
    static_cast<void>(iteration);
#pragma GCC unroll 32
    for (int i = 0; i < 32; ++i) {
      a += step;
      b += step;
      c += step;
      d += step;
      asm volatile("" : "+r"(a), "+r"(b), "+r"(c), "+r"(d));  // forces each addition, in a register
    }
  }
}

}  // namespace

void pointer_chase::run(benchmark::State& state) {
  if (nodes_.empty()) link();
  std::uint32_t position = position_;
  for (auto iteration : state) {
    static_cast<void>(iteration);
    position = nodes_[position].next;
    benchmark::DoNotOptimize(position);
  }
  position_ = position;
}

void pointer_chase::link() {
  nodes_.resize(blocks_);
  std::vector<std::uint32_t> order(blocks_);
  std::iota(order.begin(), order.end(), 0U);
  std::shuffle(order.begin(), order.end(), std::minstd_rand{1});
  for (std::size_t i = 0; i < blocks_; ++i) nodes_[order[i]].next = order[(i + 1) % blocks_];
}

void latency_floor::add(case_list& cases, const std::vector<unsigned>& threads, const std::vector<replay_loop>& loops,
                        const std::vector<std::string>& names) {
  cases.add("floor", "empty_call", 1, short_iterations, call_nothing);
  cases.add("floor", "mutex", 1, short_iterations, lock_and_unlock);
  for (const int power : live_powers) {
    chases_.push_back(std::make_unique<pointer_chase>(power_of_ten(power)));
    cases.add("floor", power_name("chase", power), 1, walk_iterations,
              [of = chases_.back().get()](benchmark::State& state) { of->run(state); });
  }
  for (const unsigned n : threads) cases.add("floor", "spin", n, spin_iterations, spin);
  if (cases.wants("handoff_ring")) ring_.begin();
  cases.add("floor", "handoff_ring", 1, gpumem_subject::handoff_iterations,
            [this](benchmark::State& state) { ring_.run(state); });
  for (std::size_t i = 0; i < loops.size(); ++i) {
    replays_.push_back(std::make_unique<replayed<empty_subject>>(empty_, loops[i]));
    cases.add(
        "floor", "replay_loop_" + names[i], 1, replay_iterations(loops[i].ops.size()),
        [of = replays_.back().get()](benchmark::State& state) { of->run(state); }, latency_long_repetitions);
  }
  if (!cases.wants("worst")) return;
  worst_ = std::make_unique<worst_case<chasing_subject>>([] { return result{std::make_unique<chasing_subject>()}; },
                                                         latency_long_repetitions);
  cases.add(
      "floor", "worst", 1, worst_pairs, [this](benchmark::State& state) { worst_->run(state); },
      latency_long_repetitions);
}

}  // namespace gpumem::bench
