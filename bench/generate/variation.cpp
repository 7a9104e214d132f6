#include "variation.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <vector>

#include "workload.hpp"

namespace gpumem::bench {
namespace {

constexpr std::uint64_t most_bytes = std::uint64_t{64} << 30;
constexpr std::uint32_t none = UINT32_MAX;

struct factors {
  double batch = 1;
  double width = 1;
  int states = 0;       ///< copies of the weights kept by an optimiser, in addition to the recorded ones
  unsigned shards = 1;  ///< of tensor parallelism
  bool data = false;
};

factors draw_factors(random_numbers& random) {
  constexpr std::array<double, 8> batches{0.5, 1, 2, 3, 4, 8, 16, 32};
  constexpr std::array<double, 5> widths{0.5, 1, 1.5, 2, 4};
  constexpr std::array<unsigned, 4> shards{1, 1, 2, 4};
  return {.batch = batches[random.below(batches.size())],
          .width = widths[random.below(widths.size())],
          .states = static_cast<int>(random.below(3)),
          .shards = shards[random.below(shards.size())],
          .data = random.below(2) == 0};
}

/// A window of operations: the blocks live at its beginning, and which of its own blocks it frees.
struct window {
  std::size_t begin = 0;
  std::size_t end = 0;
  std::vector<std::uint64_t> live;  ///< by slot: bytes; 0: free
  std::vector<bool> freed;          ///< by operation: an allocation that the window frees
};

window cut(const trace& of, std::uint64_t ops, random_numbers& random) {
  window out;
  out.begin = of.ops.size() > ops ? random.below(of.ops.size() - ops) : 0;
  out.end = std::min<std::size_t>(of.ops.size(), out.begin + ops);
  out.live.resize(of.slots);
  for (std::size_t i = 0; i < out.begin; ++i) {
    out.live[of.ops[i].slot] = of.ops[i].kind == op_kind::free ? 0 : of.ops[i].bytes;
  }
  out.freed.resize(out.end - out.begin);
  std::vector<std::size_t> made(of.slots, SIZE_MAX);
  for (std::size_t i = out.begin; i < out.end; ++i) {
    const trace_op& op = of.ops[i];
    if (op.kind == op_kind::allocate) {
      made[op.slot] = i - out.begin;
    } else if (made[op.slot] != SIZE_MAX) {
      out.freed[made[op.slot]] = true;
      made[op.slot] = SIZE_MAX;
    }
  }
  return out;
}

std::uint64_t scaled(std::uint64_t bytes, double by) {
  return std::max<std::uint64_t>(static_cast<std::uint64_t>(static_cast<double>(bytes) * by) / 4 * 4, 4);
}

trace replayed(const trace& of, const window& in, const factors& by) {
  trace_builder out{by.data ? 2U : 1U};
  const double stays = by.width * by.width / by.shards;
  const double passes = by.batch * by.width / by.shards;
  std::vector<std::uint32_t> slot_of(of.slots, none);
  for (std::uint32_t slot = 0; slot < in.live.size(); ++slot) {
    if (in.live[slot] == 0) continue;
    slot_of[slot] = out.allocate(scaled(in.live[slot], stays));
    for (int k = 0; k < by.states; ++k) out.allocate(scaled(in.live[slot], stays));
  }
  std::uint64_t frees = 0;
  for (std::size_t i = in.begin; i < in.end; ++i) {
    const trace_op& op = of.ops[i];
    if (op.kind == op_kind::allocate) {
      slot_of[op.slot] = out.allocate(scaled(op.bytes, in.freed[i - in.begin] ? passes : stays));
    } else if (slot_of[op.slot] != none) {
      const bool elsewhere = by.data && op.bytes >= 65536 && ++frees % 16 == 0;
      out.free(slot_of[op.slot], elsewhere ? 1 : 0);
      slot_of[op.slot] = none;
    }
  }
  return std::move(out).done(fmt::format("{}-b{:g}-w{:g}-{}states-{}{}", of.name, by.batch, by.width, by.states,
                                         by.data ? "data" : "one",
                                         by.shards == 1 ? "" : fmt::format("-tensor{}", by.shards)));
}

}  // namespace

trace vary(const trace& recorded, std::uint64_t ops, random_numbers& random) {
  for (;;) {
    const factors by = draw_factors(random);
    trace made = replayed(recorded, cut(recorded, ops, random), by);
    if (made.peak_live_bytes <= most_bytes) return made;
  }
}

}  // namespace gpumem::bench
