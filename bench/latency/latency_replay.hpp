/// The case `replay_<trace>`: a trace as a tight loop of allocations and frees only.
///
/// Enqueues no work, reads no clock and looks up no pointer: all lookups are resolved in advance. Each block is freed
/// on its own stream; blocks live at the end are freed outside the timed part.
#pragma once

#include <benchmark/benchmark.h>

#include <vector>

#include "gpumem/device.hpp"
#include "replay_loop.hpp"

namespace gpumem::bench {

/// One allocator on one trace. Keeps the allocator's state between passes.
template <typename subject>
class replayed {
 public:
  replayed(subject& measured, const replay_loop& loop) : subject_{&measured}, loop_{&loop}, blocks_(loop.slots) {
    for (std::size_t i = 0; i < loop.streams; ++i) streams_.push_back(measured.stream(i));
  }
  /// An iteration is a pass. The very first pass takes memory from the device and is not measured.
  void run(benchmark::State& state) {
    if (!warm_) {
      warm_ = true;
      static_cast<void>(pass());
      free_rest();
    }
    for (auto iteration : state) {
      static_cast<void>(iteration);
      const bool enough = pass();
      state.PauseTiming();
      free_rest();
      state.ResumeTiming();
      if (!enough) {
        state.SkipWithError("out of memory");
        break;
      }
    }
  }

 private:
  /// Replays the whole trace. False if an allocation failed.
  bool pass() {
    bool enough = true;
    void** const blocks = blocks_.data();
    const stream_ref* const streams = streams_.data();
    subject& measured = *subject_;
    for (const loop_op& op : loop_->ops) {
      void*& p = blocks[op.slot];
      if (op.frees) {
        measured.release(p, streams[op.stream]);
      } else {
        p = measured.allocate(op.bytes, streams[op.stream]);
        if (p == nullptr) [[unlikely]]
          enough = false;
      }
    }
    return enough;
  }
  void free_rest() {
    for (const loop_op& op : loop_->live_at_end) subject_->release(blocks_[op.slot], streams_[op.stream]);
  }

  subject* subject_;
  const replay_loop* loop_;
  std::vector<void*> blocks_;
  std::vector<stream_ref> streams_;
  bool warm_ = false;
};

}  // namespace gpumem::bench
