#include "schedule.hpp"

#include <algorithm>
#include <cstddef>

#include "bits.hpp"
#include "gpumem/allocator.hpp"
#include "random_numbers.hpp"

namespace gpumem::bench {
namespace {

/// Any stream but `own`; an extra one if there is no other.
std::uint16_t other_stream(std::size_t streams, std::uint16_t own, random_numbers& random) {
  if (streams == 1) return 1;
  const auto pick = static_cast<std::uint16_t>(random.below(streams - 1));
  return pick >= own ? static_cast<std::uint16_t>(pick + 1) : pick;
}

}  // namespace

std::vector<second_use> plan_second_uses(const trace& recorded, double share, std::uint64_t seed) {
  std::vector<second_use> uses;
  if (share <= 0) return uses;
  random_numbers random{seed};
  std::vector<std::size_t> allocated_at(recorded.slots, recorded.ops.size());  // ops.size() if the slot is free
  const auto choose = [&](std::uint32_t slot, std::size_t freed_at) {
    const std::size_t begin = allocated_at[slot];
    allocated_at[slot] = recorded.ops.size();
    if (random.share() >= share) return;
    const trace_op& op = recorded.ops[begin];
    uses.push_back({.after_op = begin + random.below(freed_at - begin),
                    .bytes = op.bytes,
                    .slot = slot,
                    .stream = other_stream(recorded.streams.size(), op.stream, random)});
  };
  for (std::size_t i = 0; i < recorded.ops.size(); ++i) {
    const trace_op& op = recorded.ops[i];
    if (op.kind == op_kind::allocate) {
      allocated_at[op.slot] = i;
    } else {
      choose(op.slot, i);
    }
  }
  for (std::uint32_t slot = 0; slot < recorded.slots; ++slot) {
    if (allocated_at[slot] != recorded.ops.size()) choose(slot, recorded.ops.size());
  }
  std::stable_sort(uses.begin(), uses.end(),
                   [](const second_use& lhs, const second_use& rhs) { return lhs.after_op < rhs.after_op; });
  return uses;
}

std::uint64_t peak_live_of(const trace& recorded, unsigned tenants) {
  std::uint64_t live = 0;
  std::uint64_t peak = 0;
  const std::size_t steps = recorded.ops.size() + tenant_offset(recorded.ops.size(), tenants - 1);
  for (std::size_t step = 0; step < steps; ++step) {
    for (unsigned tenant = 0; tenant < tenants; ++tenant) {
      const std::size_t index = step - tenant_offset(recorded.ops.size(), tenant);  // wraps before the tenant starts
      if (index >= recorded.ops.size()) continue;
      const std::uint64_t bytes = round_up(recorded.ops[index].bytes, block_granularity);
      if (recorded.ops[index].kind == op_kind::allocate) {
        peak = std::max(peak, live += bytes);
      } else {
        live -= bytes;
      }
    }
  }
  return peak;
}

}  // namespace gpumem::bench
