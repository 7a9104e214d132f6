#include "replay_loop.hpp"

namespace gpumem::bench {

replay_loop loop_of(const trace& recorded) {
  replay_loop loop{
      .ops = {}, .live_at_end = {}, .slots = recorded.slots, .streams = recorded.streams.size(), .frees = 0};
  loop.ops.reserve(recorded.ops.size());
  std::vector<std::uint16_t> stream_of(recorded.slots);
  std::vector<bool> live(recorded.slots);
  for (const trace_op& op : recorded.ops) {
    const bool frees = op.kind == op_kind::free;
    if (!frees) stream_of[op.slot] = op.stream;
    live[op.slot] = !frees;
    loop.frees += frees ? 1 : 0;
    loop.ops.push_back({op.bytes, op.slot, stream_of[op.slot], frees});
  }
  for (std::uint32_t slot = 0; slot < recorded.slots; ++slot) {
    if (live[slot]) loop.live_at_end.push_back({0, slot, stream_of[slot], true});
  }
  return loop;
}

}  // namespace gpumem::bench
