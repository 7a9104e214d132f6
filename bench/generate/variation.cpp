#include "variation.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <vector>

#include "network.hpp"
#include "workload.hpp"

namespace gpumem::bench {
namespace {

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

/// A window of operations: the blocks live at its beginning, and the allocations that it frees.
struct window {
  std::size_t begin = 0;
  std::size_t end = 0;
  std::vector<std::uint64_t> live;  ///< by slot: bytes; 0: free
  std::vector<bool> freed;          ///< by operation: an allocation that the window frees
};

window cut(const trace& recorded, std::uint64_t ops, random_numbers& random) {
  window piece;
  piece.begin = recorded.ops.size() > ops ? random.below(recorded.ops.size() - ops) : 0;
  piece.end = std::min<std::size_t>(recorded.ops.size(), piece.begin + ops);
  piece.live.resize(recorded.slots);
  for (std::size_t i = 0; i < piece.begin; ++i) {
    piece.live[recorded.ops[i].slot] = recorded.ops[i].kind == op_kind::free ? 0 : recorded.ops[i].bytes;
  }
  piece.freed.resize(piece.end - piece.begin);
  std::vector<std::size_t> made(recorded.slots, SIZE_MAX);
  for (std::size_t i = piece.begin; i < piece.end; ++i) {
    const trace_op& op = recorded.ops[i];
    if (op.kind == op_kind::allocate) {
      made[op.slot] = i - piece.begin;
    } else if (made[op.slot] != SIZE_MAX) {
      piece.freed[made[op.slot]] = true;
      made[op.slot] = SIZE_MAX;
    }
  }
  return piece;
}

std::uint64_t scaled(std::uint64_t bytes, double factor) {
  return std::max<std::uint64_t>(static_cast<std::uint64_t>(static_cast<double>(bytes) * factor) / 4 * 4, 4);
}

trace replayed(const trace& recorded, const window& piece, const factors& scale) {
  trace_builder builder{scale.data ? 2U : 1U};
  const double stays = scale.width * scale.width / scale.shards;
  const double passes = scale.batch * scale.width / scale.shards;
  std::vector<std::uint32_t> slot_of(recorded.slots, none);
  for (std::uint32_t slot = 0; slot < piece.live.size(); ++slot) {
    if (piece.live[slot] == 0) continue;
    slot_of[slot] = builder.allocate(scaled(piece.live[slot], stays));
    for (int k = 0; k < scale.states; ++k) builder.allocate(scaled(piece.live[slot], stays));
  }
  const std::uint64_t began_ns = builder.next_ns();
  std::uint64_t frees = 0;
  for (std::size_t i = piece.begin; i < piece.end; ++i) {
    const trace_op& op = recorded.ops[i];
    builder.not_before(began_ns + op.time_ns - recorded.ops[piece.begin].time_ns);
    if (op.kind == op_kind::allocate) {
      slot_of[op.slot] = builder.allocate(scaled(op.bytes, piece.freed[i - piece.begin] ? passes : stays));
    } else if (slot_of[op.slot] != none) {
      const bool elsewhere = scale.data && op.bytes >= 65536 && ++frees % 16 == 0;
      builder.free(slot_of[op.slot], elsewhere ? 1 : 0);
      slot_of[op.slot] = none;
    }
  }
  return std::move(builder).done(fmt::format("{}-b{:g}-w{:g}-{}states-{}{}", recorded.name, scale.batch, scale.width,
                                             scale.states, scale.data ? "data" : "one",
                                             scale.shards == 1 ? "" : fmt::format("-tensor{}", scale.shards)));
}

}  // namespace

trace vary(const trace& recorded, std::uint64_t ops, random_numbers& random) {
  for (;;) {
    const factors scale = draw_factors(random);
    trace made = replayed(recorded, cut(recorded, ops, random), scale);
    if (made.peak_live_bytes <= most_generated_bytes) return made;
  }
}

}  // namespace gpumem::bench
