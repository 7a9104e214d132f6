#include "live_memory.hpp"

#include <algorithm>
#include <map>
#include <tuple>

#include "bits.hpp"
#include "gpumem/request.hpp"

namespace gpumem::cli {
namespace {

using bench::op_kind;
using bench::trace_op;
using groups = std::map<std::uint64_t, live_group>;

std::uint64_t block_bytes(const trace_op& op) { return round_up(op.bytes, block_granularity); }

void add(groups& totals, std::uint64_t key, std::uint64_t bytes) {
  live_group& group = totals[key];
  group.key = key;
  group.bytes += bytes;
  ++group.blocks;
}

std::vector<live_group> largest_first(const groups& totals) {
  std::vector<live_group> sorted;
  for (const auto& [key, group] : totals) sorted.push_back(group);
  std::stable_sort(sorted.begin(), sorted.end(),
                   [](const live_group& lhs, const live_group& rhs) { return lhs.bytes > rhs.bytes; });
  return sorted;
}

}  // namespace

live_memory live_after(const bench::trace& recorded, std::uint64_t ops) {
  std::vector<const trace_op*> by_slot(recorded.slots);
  live_memory live;
  live.ops = std::min<std::uint64_t>(ops, recorded.ops.size());
  for (std::uint64_t i = 0; i < live.ops; ++i) {
    const trace_op& op = recorded.ops[i];
    by_slot[op.slot] = op.kind == op_kind::allocate ? &op : nullptr;
  }
  groups by_size;
  groups by_stream;
  for (const trace_op* const block : by_slot) {
    if (block == nullptr) continue;
    live.bytes += block_bytes(*block);
    ++live.blocks;
    add(by_size, block->bytes, block_bytes(*block));
    add(by_stream, recorded.streams[block->stream], block_bytes(*block));
  }
  live.by_size = largest_first(by_size);
  live.by_stream = largest_first(by_stream);
  return live;
}

std::uint64_t ops_until_peak(const bench::trace& recorded) {
  std::uint64_t live = 0;
  std::uint64_t most = 0;
  std::uint64_t peak = 0;
  for (std::uint64_t i = 0; i < recorded.ops.size(); ++i) {
    const trace_op& op = recorded.ops[i];
    live = op.kind == op_kind::allocate ? live + block_bytes(op) : live - block_bytes(op);
    if (live > most) std::tie(most, peak) = std::tuple{live, i + 1};
  }
  return peak;
}

bench::trace until_refusal(const bench::trace& recorded, const bench::refused_request& request) {
  bench::trace shortened = recorded;
  shortened.refused.clear();
  shortened.ops.resize(std::min<std::uint64_t>(request.before_op, recorded.ops.size()));
  shortened.ops.push_back({request.time_ns, request.bytes, shortened.slots++, request.stream, op_kind::allocate});
  shortened.peak_live_bytes = 0;
  std::uint64_t live = 0;
  for (const trace_op& op : shortened.ops) {
    live = op.kind == op_kind::allocate ? live + block_bytes(op) : live - block_bytes(op);
    shortened.peak_live_bytes = std::max(shortened.peak_live_bytes, live);
  }
  return shortened;
}

}  // namespace gpumem::cli
