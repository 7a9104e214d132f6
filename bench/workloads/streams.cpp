/// Several streams: a pipeline whose stages pass blocks on, and tenants with different workloads.
#include <algorithm>
#include <deque>

#include "workload.hpp"

namespace gpumem::bench {

/// Micro-batches pass through as many stages as there are streams. Each stage allocates its output on its own stream;
/// the next stage reads it and frees it on its own.
trace pipeline_workload(const workload_shape& shape) {
  random_numbers random{shape.seed};
  const unsigned stages = shape.streams;
  trace_builder builder{stages};
  const std::uint64_t unit = std::max<std::uint64_t>(shape.peak_bytes / stages / 64, 512);
  for (unsigned stage = 0; stage < stages; ++stage) builder.allocate(16 * unit, static_cast<std::uint16_t>(stage));
  std::vector<std::deque<std::uint32_t>> waiting(stages);  // outputs of a stage that the next one has not read
  while (builder.ops() < shape.ops) {
    // A stage runs if it has input and room for output. Later stages run first, as in one-forward-one-backward.
    for (unsigned stage = stages; stage-- > 0;) {
      if (waiting[stage].size() >= 4 || (stage > 0 && waiting[stage - 1].empty())) continue;
      const auto stream = static_cast<std::uint16_t>(stage);
      const std::uint32_t workspace = builder.allocate(unit * (1 + random.below(6)), stream);
      waiting[stage].push_back(builder.allocate(unit * (1 + random.below(12)), stream));
      builder.free(workspace);
      if (stage > 0) {
        builder.free(waiting[stage - 1].front(), stream);
        waiting[stage - 1].pop_front();
      }
    }
    if (!waiting[stages - 1].empty()) {
      builder.free(waiting[stages - 1].front());
      waiting[stages - 1].pop_front();
    }
  }
  return std::move(builder).done("pipeline");
}

/// Training, serving and epochs, one on each stream; operations alternate between them.
trace tenants_workload(const workload_shape& shape) {
  std::vector<trace> programs;
  for (unsigned i = 0; i < shape.tenants; ++i) {
    workload_shape own = shape;
    own.ops = shape.ops / shape.tenants;
    own.peak_bytes = shape.peak_bytes / shape.tenants;
    own.seed = shape.seed + i;
    programs.push_back(i % 3 == 0 ? training_workload(own) : i % 3 == 1 ? serving_workload(own) : epochs_workload(own));
  }
  trace_builder builder{shape.tenants};
  std::vector<std::vector<std::uint32_t>> slots;
  std::size_t longest = 0;
  for (const trace& each : programs) {
    slots.emplace_back(each.slots);
    longest = std::max(longest, each.ops.size());
  }
  for (std::size_t i = 0; i < longest; ++i) {
    for (std::size_t k = 0; k < programs.size(); ++k) {
      if (i >= programs[k].ops.size()) continue;
      const trace_op& op = programs[k].ops[i];
      if (op.kind == op_kind::allocate) {
        slots[k][op.slot] = builder.allocate(op.bytes, static_cast<std::uint16_t>(k));
      } else {
        builder.free(slots[k][op.slot]);
      }
    }
  }
  return std::move(builder).done("tenants");
}

}  // namespace gpumem::bench
