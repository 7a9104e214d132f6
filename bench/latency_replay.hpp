/// The case `replay_<trace>`: a trace as a tight loop of allocations and frees, and nothing else.
///
/// No clock, no work on the device, no table of pointers: what a replay looks up while it runs is resolved here,
/// before. A block is freed in the order of its own stream, and what lives at the end is freed outside the time.
#pragma once

#include <benchmark/benchmark.h>

#include <vector>

#include "gpumem/device.hpp"
#include "trace.hpp"

namespace gpumem::bench {

struct loop_op {
  std::uint64_t bytes = 0;
  std::uint32_t slot = 0;
  std::uint16_t stream = 0;  ///< the block's
  bool frees = false;
};

/// A trace's operations in their order.
struct replay_loop {
  std::vector<loop_op> ops;
  std::vector<loop_op> live_at_end;  ///< what frees those
  std::size_t slots = 0;
  std::size_t streams = 0;
  std::size_t frees = 0;
};

inline replay_loop loop_of(const trace& t) {
  replay_loop out{.ops = {}, .live_at_end = {}, .slots = t.slots, .streams = t.streams.size(), .frees = 0};
  out.ops.reserve(t.ops.size());
  std::vector<std::uint16_t> stream_of(t.slots);
  std::vector<bool> live(t.slots);
  for (const trace_op& op : t.ops) {
    const bool frees = op.kind == op_kind::free;
    if (!frees) stream_of[op.slot] = op.stream;
    live[op.slot] = !frees;
    out.frees += frees ? 1 : 0;
    out.ops.push_back({op.bytes, op.slot, stream_of[op.slot], frees});
  }
  for (std::uint32_t slot = 0; slot < t.slots; ++slot) {
    if (live[slot]) out.live_at_end.push_back({0, slot, stream_of[slot], true});
  }
  return out;
}

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
        enough &= p != nullptr;
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
