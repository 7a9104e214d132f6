/// The floor of the machine for `latency`: the cost of its cases without any allocation.
#pragma once

#include <string>
#include <vector>

#include "latency_cases.hpp"
#include "latency_hand_off.hpp"
#include "latency_replay.hpp"
#include "latency_subjects.hpp"
#include "latency_worst.hpp"

namespace gpumem::bench {

/// Follows a random ring of blocks, each on its own cache line. Keeps its state between repetitions, as a walk over
/// live blocks does, so that other cases evict both from the processor's caches.
class pointer_chase {
 public:
  explicit pointer_chase(std::size_t blocks) : blocks_{blocks} {}
  void run(benchmark::State& state);
  /// Links the ring in a random but fixed order.
  void link();
  /// Moves to the next block. Requires `link`.
  [[gnu::always_inline]] void* step() {
    node& current = nodes_[position_];
    position_ = current.next;
    return &current;
  }

 private:
  struct alignas(64) node {
    std::uint32_t next;
  };

  std::size_t blocks_;
  std::vector<node> nodes_;
  std::uint32_t position_ = 0;
};

/// The floor of `worst`: a step of a pointer chase, which takes about as long as an operation of gpumem between two
/// clock readings. An empty call would be too short for interruptions to fall into it.
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

/// Owns the state of the floor's cases while they run.
class latency_floor {
 public:
  /// Requires that `loops` and `names` outlive this.
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
