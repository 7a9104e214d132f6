#include "replay_loop.hpp"

namespace gpumem::bench {

replay_loop loop_of(const trace& t) {
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

}  // namespace gpumem::bench
