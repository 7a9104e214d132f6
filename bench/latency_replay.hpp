/// The case `replay_<trace>`: a trace as a tight loop of allocations and frees, and nothing else.
///
/// No clock, no work on the device, no table of pointers: what a replay looks up while it runs is resolved here,
/// before. A block is freed in the order of its own stream, and what lives at the end is freed outside the time.
#pragma once

#include <benchmark/benchmark.h>

#include <vector>

#include "gpumem/device.hpp"
#include "replay_loop.hpp"

namespace gpumem::bench {

/// One allocator on one trace; it stays as the pass before left it.
template <typename subject>
class replayed {
 public:
  replayed(subject& of, const replay_loop& loop) : of_{&of}, loop_{&loop}, blocks_(loop.slots) {
    for (std::size_t i = 0; i < loop.streams; ++i) streams_.push_back(of.stream(i));
  }
  /// A turn is a pass. The first one of all is not measured: it is the one that takes memory from the device.
  void run(benchmark::State& state) {
    if (!warm_) {
      warm_ = true;
      static_cast<void>(pass());
      free_rest();
    }
    for (auto turn : state) {
      static_cast<void>(turn);
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
  /// False: an allocation failed; the rest was replayed all the same.
  bool pass() {
    bool enough = true;
    void** const blocks = blocks_.data();
    const stream_ref* const streams = streams_.data();
    subject& of = *of_;
    for (const loop_op& op : loop_->ops) {
      void*& p = blocks[op.slot];
      if (op.frees) {
        of.release(p, streams[op.stream]);
      } else {
        p = of.allocate(op.bytes, streams[op.stream]);
        if (p == nullptr) [[unlikely]]
          enough = false;
      }
    }
    return enough;
  }
  void free_rest() {
    for (const loop_op& op : loop_->live_at_end) of_->release(blocks_[op.slot], streams_[op.stream]);
  }

  subject* of_;
  const replay_loop* loop_;
  std::vector<void*> blocks_;
  std::vector<stream_ref> streams_;
  bool warm_ = false;
};

}  // namespace gpumem::bench
