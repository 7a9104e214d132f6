/// The floor of the machine under `latency`: what its cases would take if nothing were allocated.
#pragma once

#include <string>
#include <vector>

#include "latency_cases.hpp"
#include "latency_hand_off.hpp"
#include "latency_replay.hpp"
#include "latency_subjects.hpp"
#include "latency_worst.hpp"

namespace gpumem::bench {

/// From block to block, each on a cache line of its own, in random order. It lives between its repetitions, and each
/// goes on where the one before ended: as those of a walk over live blocks do, with all that other cases did in
/// between.
class pointer_chase {
 public:
  explicit pointer_chase(std::size_t blocks) : blocks_{blocks} {}
  void run(benchmark::State& state);
  /// Makes the ring of blocks, in an order that is random and always the same.
  void link();
  /// To the next block. Requires that it is linked.
  [[gnu::always_inline]] void* step() {
    node& here = nodes_[at_];
    at_ = here.next;
    return &here;
  }

 private:
  struct alignas(64) node {
    std::uint32_t next;
  };

  std::size_t blocks_;
  std::vector<node> nodes_;
  std::uint32_t at_ = 0;
};

/// What `worst` times where nothing is allocated: a step of a chase. In a row, and with the clock read around it, it
/// takes about as long as an operation of gpumem. An empty call would take so little of the time that interruptions of
/// the machine fell between two of them.
class chasing_subject {
 public:
  static constexpr std::size_t blocks = 100'000;

  chasing_subject() { chase_.link(); }
  void* allocate(std::size_t /*bytes*/, stream_ref /*s*/) { return chase_.step(); }
  void release(void* /*p*/, stream_ref /*own*/) { benchmark::DoNotOptimize(chase_.step()); }
  [[nodiscard]] static stream_ref stream(std::size_t /*i*/) { return {}; }
  static constexpr bool counts_device_calls = false;
  static constexpr bool opened_anew = true;

 private:
  pointer_chase chase_{blocks};
};

/// What the floor's cases keep while they run.
class latency_floor {
 public:
  /// `loops` and the names of their traces stay where they are.
  void add(case_list& cases, const std::vector<unsigned>& threads, const std::vector<replay_loop>& loops,
           const std::vector<std::string>& names);
  [[nodiscard]] worst_case<chasing_subject>* worst() { return worst_.get(); }

 private:
  empty_subject empty_;
  handed_over<empty_subject> ring_{empty_};
  std::vector<std::unique_ptr<pointer_chase>> chases_;
  std::vector<std::unique_ptr<replayed<empty_subject>>> replays_;
  std::unique_ptr<worst_case<chasing_subject>> worst_;
};

}  // namespace gpumem::bench
